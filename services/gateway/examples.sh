#!/usr/bin/env bash
# One conversation by hand. Needs curl 7.82, HUMANWORK_URL and HUMANWORK_TOKEN.
set -euo pipefail

call() { curl --silent --show-error --fail-with-body --header "Authorization: Bearer $HUMANWORK_TOKEN" "$@"; }
conversations=$HUMANWORK_URL/v1/organizations/acme/conversations

# An organization and a conversation; both calls can be repeated.
call --json '{"organizationId": "acme"}' "$HUMANWORK_URL/v1/organizations"
call --json '{"conversationId": "c1", "persona": "You are brief."}' "$conversations"

# A turn. Sending it again with the same key answers the same turn.
accepted=$(call --header 'Idempotency-Key: first-1' \
  --json '{"messages": [{"blocks": [{"type": "text", "text": "Hello"}]}]}' "$conversations/c1/turns")
echo "$accepted"
turn=$(sed 's/.*"turnId":"\([^"]*\)".*/\1/' <<<"$accepted")

# Wait for its end, then read the transcript.
call "$conversations/c1/turns/$turn?wait=120s"
call "$conversations/c1/transcript?pageSize=100"

# Everything that happened so far, then five seconds of what happens next.
call --no-buffer --max-time 5 "$conversations/c1/events?after=0" || [ $? -eq 28 ]

# An attachment, and the turn that brings it: the block is sent as it was answered.
stored=$(call --data-binary "Dear all" "$conversations/c1/attachments?filename=note.txt")
echo "$stored"
block=${stored#*\"block\":}
call --json "{\"messages\": [{\"blocks\": [${block%\}}]}]}" "$conversations/c1/turns"

# A file of the workspace: written once, read back in part, listed, removed.
call --request PUT --data-binary "Dear all" --header 'If-None-Match: *' "$conversations/c1/files/workspace/a%20note.txt"
call --range 0-3 "$conversations/c1/files/workspace/a%20note.txt"
call "$conversations/c1/files?prefix=workspace/"
call --request DELETE "$conversations/c1/files/workspace/a%20note.txt"

# A turn that is no longer wanted.
call --request POST "$conversations/c1/turns/$turn:cancel"
