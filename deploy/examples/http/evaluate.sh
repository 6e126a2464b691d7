#!/bin/sh
# Whether a subject may do something: evaluate.sh user:dana kafka:GetTopicDetails kafka:topic:prod/main/orders
# Prints allow or deny; exit code 0 for an allow alone. PDP_URL and PDP_TOKEN say whom to ask, and as whom.

# A name that would have to be escaped in JSON is not asked about: it could end its text, and ask something else.
case $1$2$3 in
  *[\"\\[:cntrl:]]*) echo deny; exit 1 ;;
esac
answer=$(curl --silent --show-error --fail --max-time 1 \
  --header "authorization: Bearer $PDP_TOKEN" --header 'content-type: application/json' \
  --data "{\"subject\": {\"type\": \"user\", \"id\": \"$1\"}, \"action\": {\"name\": \"$2\"},
           \"resource\": {\"type\": \"lrn\", \"id\": \"$3\"}}" \
  "$PDP_URL/lenses6/access/v1/evaluation")
case $answer in
  *'"enforced":false'*) echo deny; exit 1 ;; # shadow mode: what would be decided, which allows nothing
  '{"decision":true,'*) echo allow ;;
  *) echo deny; exit 1 ;;
esac
