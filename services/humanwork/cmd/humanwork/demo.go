package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"humanwork.internal/pkg/app"
	"humanwork.internal/services/humanwork"
)

func demoCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "One real turn from start to end, then stop",
		Long: `Set up what is missing, start every service, create an organization and a conversation, send a
text to the real Hermes, print its reply, the transcript and the phase timings, and stop. The demo keeps its
state in the directory "demo" of the data directory, so it runs beside "humanwork run".`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := load(cmd)
			if err != nil {
				return err
			}
			shared := s.DataDir
			s.DataDir = filepath.Join(shared, "demo")
			if !cmd.Flags().Changed("http-addr") {
				s.HTTPAddr = "127.0.0.1:0"
			}
			ctx, stop := context.WithCancel(cmd.Context())
			defer stop()
			result := errors.New("the instance stopped before the demo ended")
			opt := humanwork.Options{Settings: s, SharedDir: shared, Progress: progress,
				Logger: app.NewLogger("humanwork").WithOptions(zap.IncreaseLevel(zap.WarnLevel))} // the output is the demo
			err = humanwork.Run(ctx, opt, func(a humanwork.Address) {
				result = demo(ctx, client{a}, cmd.OutOrStdout())
				stop()
			})
			return errors.Join(result, err)
		},
	}
	humanwork.AddFlags(cmd.Flags())
	return cmd
}

// The parts of the API's answers that the demo shows; api names are the public contract's.
type (
	locator struct {
		SessionID string `json:"sessionId"`
		MessageID string `json:"messageId"`
	}
	turn struct {
		TurnID  string `json:"turnId"`
		State   string `json:"state"`
		Replies []struct {
			Locator locator `json:"locator"`
			Text    string  `json:"text"`
		} `json:"replies"`
		Error *struct {
			Reason  string `json:"reason"`
			Message string `json:"message"`
		} `json:"error"`
		Timings map[string]float64 `json:"timings"`
	}
	transcript struct {
		Messages []struct {
			Locator locator `json:"locator"`
			Role    string  `json:"role"`
			Text    string  `json:"text"`
		} `json:"messages"`
	}
)

const demoText = "Hello, Hermes. Which model answers me, and where does my text go?"

func demo(ctx context.Context, c client, out io.Writer) error {
	const organization = "demo"
	conversation := "demo-" + strings.ToLower(rand.Text()[:8])
	base := "/v1/organizations/" + organization + "/conversations/" + conversation
	fmt.Fprintf(out, "Model         %s\n", c.Model)
	if err := c.call(ctx, "POST", "/v1/organizations", nil, map[string]string{"organizationId": organization}, &struct{}{}); err != nil {
		return err
	}
	var created struct {
		SessionID string `json:"sessionId"`
	}
	if err := c.call(ctx, "POST", "/v1/organizations/"+organization+"/conversations", nil, map[string]string{"conversationId": conversation}, &created); err != nil {
		return err
	}
	fmt.Fprintf(out, "Conversation  %s, native session %s\n", conversation, created.SessionID)
	for i, text := range []string{demoText, "And once more, now that you are warm."} {
		fmt.Fprintf(out, "\n> %s\n", text)
		body := map[string]any{"messages": []any{map[string]any{"blocks": []any{map[string]string{"type": "text", "text": text}}}}}
		var t turn
		if err := c.call(ctx, "POST", base+"/turns", map[string]string{"Idempotency-Key": fmt.Sprintf("demo-%d", i)}, body, &t); err != nil {
			return err
		}
		if err := c.call(ctx, "GET", base+"/turns/"+t.TurnID+"?wait=120s", nil, nil, &t); err != nil {
			return err
		}
		if t.State != "REPLIED" {
			if t.Error != nil {
				return fmt.Errorf("turn %s ended %s: %s: %s", t.TurnID, t.State, t.Error.Reason, t.Error.Message)
			}
			return fmt.Errorf("turn %s is %s, want REPLIED", t.TurnID, t.State)
		}
		for _, r := range t.Replies {
			fmt.Fprintf(out, "< %s\n", r.Text)
			fmt.Fprintf(out, "  %s, locator (%s, %s)\n", t.State, r.Locator.SessionID, r.Locator.MessageID)
		}
		fmt.Fprint(out, "  timings")
		for _, phase := range []string{"acceptToAttachMs", "coldAdmissionMs", "firstModelRequestMs", "modelToolLoopMs", "persistDeliverMs"} {
			if ms, ok := t.Timings[phase]; ok {
				fmt.Fprintf(out, "  %s %.1f", phase, ms)
			}
		}
		fmt.Fprintln(out)
	}
	var tr transcript
	if err := c.call(ctx, "GET", base+"/transcript", nil, nil, &tr); err != nil {
		return err
	}
	fmt.Fprintln(out, "\nTranscript")
	for _, m := range tr.Messages {
		fmt.Fprintf(out, "  %4s  %-9s  %s\n", m.Locator.MessageID, m.Role, strings.ReplaceAll(m.Text, "\n", "\n                   "))
	}
	return nil
}
