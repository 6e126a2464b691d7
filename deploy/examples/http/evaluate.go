// Whether a subject may do something: go run evaluate.go user:dana kafka:GetTopicDetails kafka:topic:prod/main/orders
//
// Prints allow or deny; exit code 0 for an allow alone. PDP_URL and PDP_TOKEN say whom to ask, and as whom.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"time"
)

var client = &http.Client{
	Timeout:       time.Second,
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

type entity struct {
	Type string `json:"type"`
	ID   string `json:"id"`
}

type action struct {
	Name string `json:"name"`
}

type evaluation struct {
	Subject  entity `json:"subject"`
	Action   action `json:"action"`
	Resource entity `json:"resource"`
}

type answer struct {
	Decision bool `json:"decision"`
	Context  struct {
		Enforced *bool `json:"enforced"`
	} `json:"context"`
}

// isAllowed returns true for an allow in time alone: another status, an error or no answer is a deny.
func isAllowed(question evaluation) (bool, error) {
	body, err := json.Marshal(question)
	if err != nil {
		return false, err
	}
	url := os.Getenv("PDP_URL") + "/lenses6/access/v1/evaluation"
	request, err := http.NewRequest(http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return false, err
	}
	request.Header.Set("Authorization", "Bearer "+os.Getenv("PDP_TOKEN"))
	request.Header.Set("Content-Type", "application/json")
	response, err := client.Do(request)
	if err != nil {
		return false, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return false, fmt.Errorf("status %d", response.StatusCode)
	}
	var found answer
	if err := json.NewDecoder(response.Body).Decode(&found); err != nil {
		return false, err
	}
	return found.Decision && (found.Context.Enforced == nil || *found.Context.Enforced), nil
}

func main() {
	question := evaluation{entity{"user", os.Args[1]}, action{os.Args[2]}, entity{"lrn", os.Args[3]}}
	allowed, err := isAllowed(question)
	if err != nil {
		fmt.Fprintln(os.Stderr, "no answer:", err)
	}
	if !allowed {
		fmt.Println("deny")
		os.Exit(1)
	}
	fmt.Println("allow")
}
