package gateway_test

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"

	ingressv1 "humanwork.internal/proto/gen/humanwork/ingress/v1"
)

// TestExamplesRun runs the script of the README, which must hold it word for word.
func TestExamplesRun(t *testing.T) {
	script, err := os.ReadFile("examples.sh")
	if err != nil {
		t.Fatal(err)
	}
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(readme), "```bash\n"+string(script)+"```\n") {
		t.Error("README.md does not show examples.sh as it is")
	}
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("curl is not installed")
	}
	var blocks []string
	w := start(t, &fakes{
		submit: func(ctx context.Context, r *ingressv1.SubmitTurnRequest) (*ingressv1.SubmitTurnResponse, error) {
			blocks = append(blocks, string(r.GetMessages()[0].GetBlocks()[0]))
			return accept(ctx, r)
		},
		getTurn: func(context.Context, *ingressv1.GetTurnRequest) (*ingressv1.GetTurnResponse, error) {
			return &ingressv1.GetTurnResponse{Turn: repliedTurn()}, nil
		},
		transcript: func(context.Context, *ingressv1.ListTranscriptRequest) (*ingressv1.ListTranscriptResponse, error) {
			return &ingressv1.ListTranscriptResponse{}, nil
		},
		stream: func(_ *ingressv1.StreamEventsRequest, s eventStream) error {
			if err := attached(s); err != nil {
				return err
			}
			return s.Send(event(1, "turn.accepted"))
		},
	})
	cmd := exec.CommandContext(t.Context(), "bash", "examples.sh")
	cmd.Env = append(os.Environ(), "HUMANWORK_URL="+w.url, "HUMANWORK_TOKEN="+adminToken)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("examples.sh: %v\n%s", err, out)
	}
	if len(blocks) != 2 || !strings.Contains(string(out), `"block":`+blocks[1]+"}") {
		t.Errorf("got blocks %q, want the second to be the one that was answered", blocks)
	}
	for _, want := range []string{`{"organizationId":"acme"`, `"conversationId":"c1"`, `{"turnId":"t1","state":"ACCEPTED"`, `"state":"REPLIED"`,
		`{"messages":[],"nextPageToken":""}`, "id: 1\nevent: turn.accepted\n",
		`"block":{"type":"resource_link","uri":"file:///artifacts/inbound/`, `"path":"workspace/a note.txt","size":"8"`, "Dear{\"files\":[{", `"state":"CANCELLED"`} {
		if !strings.Contains(string(out), want) {
			t.Errorf("the output lacks %s:\n%s", want, out)
		}
	}
}
