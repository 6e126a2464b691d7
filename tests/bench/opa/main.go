// Decides requests with OPA in process: reads {"groups", "roles", "requests"} from standard input and writes
// {"prepare_seconds", "passes": [{"nanoseconds": […], "allowed": […]}]}, a pass for each of cold and warm.
package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"log"
	"os"
	"runtime"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/rego"
	"github.com/open-policy-agent/opa/v1/storage/inmem"
	"golang.org/x/sys/unix"
)

//go:embed policy.rego
var module string

type work struct {
	Groups   map[string]any   `json:"groups"`
	Roles    map[string]any   `json:"roles"`
	Requests []map[string]any `json:"requests"`
	Passes   int              `json:"passes"`
	Seconds  float64          `json:"seconds"`
}

type pass struct {
	Nanoseconds []int64 `json:"nanoseconds"`
	Allowed     []bool  `json:"allowed"`
}

func threadTime() int64 {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &now); err != nil {
		log.Fatal(err)
	}
	return now.Nano()
}

func decideAll(query rego.PreparedEvalQuery, todo work) pass {
	done := pass{}
	end := threadTime() + int64(todo.Seconds*float64(time.Second))
	for _, request := range todo.Requests {
		begun := threadTime()
		input, err := ast.InterfaceToValue(request)
		if err != nil {
			log.Fatal(err)
		}
		found, err := query.Eval(context.Background(), rego.EvalParsedInput(input))
		if err != nil {
			log.Fatal(err)
		}
		done.Nanoseconds = append(done.Nanoseconds, threadTime()-begun)
		done.Allowed = append(done.Allowed, found.Allowed())
		if threadTime() > end {
			break
		}
	}
	return done
}

func main() {
	runtime.LockOSThread()
	var todo work
	if err := json.NewDecoder(os.Stdin).Decode(&todo); err != nil {
		log.Fatal(err)
	}
	begun := time.Now()
	store := inmem.NewFromObjectWithOpts(
		map[string]any{"groups": todo.Groups, "roles": todo.Roles}, inmem.OptReturnASTValuesOnRead(true))
	query, err := rego.New(
		rego.Query("data.bench.allow"), rego.Module("policy.rego", module), rego.Store(store),
	).PrepareForEval(context.Background())
	if err != nil {
		log.Fatal(err)
	}
	found := map[string]any{"prepare_seconds": time.Since(begun).Seconds()}
	passes := []pass{}
	for range todo.Passes {
		passes = append(passes, decideAll(query, todo))
	}
	found["passes"] = passes
	if err := json.NewEncoder(os.Stdout).Encode(found); err != nil {
		log.Fatal(err)
	}
}
