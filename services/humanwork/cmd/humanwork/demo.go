package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"humanwork.internal/pkg/app"
	"humanwork.internal/services/humanwork"
	"humanwork.internal/services/humanwork/internal/restapi"
)

func demoCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Two real turns from start to end, then stop",
		Long: `Set up what is missing, start every service, create an organization and a conversation, send a
text, and then an attachment with a caption, to the real Hermes, print its replies with the phase
timings, the transcript, the files and what the ledger has of them, and stop. The demo keeps its
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
				d := demo{ctx: ctx, out: cmd.OutOrStdout(), Client: restapi.Client{BaseURL: a.BaseURL, Token: a.Token},
					conv: restapi.Conversation{Organization: "demo", ID: "demo-" + strings.ToLower(rand.Text()[:8])}}
				result = d.run(a.Model)
				stop()
			})
			return errors.Join(result, err)
		},
	}
	humanwork.AddFlags(cmd.Flags())
	return cmd
}

// The parts of the API's answers that the demo shows; names are the public contract's.
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
			Locator    locator             `json:"locator"`
			Role       string              `json:"role"`
			Text       string              `json:"text"`
			Attachment *restapi.Attachment `json:"attachment"`
		} `json:"messages"`
	}
)

const (
	demoText       = "Hello, Hermes. Which model answers me, and where does my text go?"
	demoCaption    = "And once more, now that you are warm: please keep this report with our conversation."
	demoAttachment = "Q3 report, final.txt"
	demoReport     = "Figures of the third quarter\n\nNorth  1,204\nSouth    987\nWest     655\n"
)

// demo is a product's view of the API.
type demo struct {
	restapi.Client
	ctx  context.Context
	out  io.Writer
	conv restapi.Conversation
}

func (d *demo) run(model string) error {
	fmt.Fprintf(d.out, "Model         %s\n", model)
	if err := d.create(); err != nil {
		return err
	}
	fmt.Fprintf(d.out, "\n> %s\n", demoText)
	if err := d.turn("demo-1", textBlock(demoText)); err != nil {
		return err
	}
	stored, err := d.Attach(d.ctx, d.conv, demoAttachment, strings.NewReader(demoReport), int64(len(demoReport)))
	if err != nil {
		return fmt.Errorf("store the attachment: %w", err)
	}
	a := stored.Value
	fmt.Fprintf(d.out, "\nAttachment    %s\n              %s, %d bytes, SHA-256 %s\n", a.URI, a.MimeType, a.Size, a.SHA256)
	fmt.Fprintln(d.out, "              An agent's own files are memory for now: Hermes gets the block, and cannot open the file yet.")
	fmt.Fprintf(d.out, "\n> %s\n> %s\n", demoCaption, a.Block)
	if err := d.turn("demo-2", textBlock(demoCaption), a.Block); err != nil {
		return err
	}
	return errors.Join(d.transcript(), d.files(), d.timeline())
}

func (d *demo) create() error {
	organization := map[string]string{"organizationId": d.conv.Organization}
	if err := d.Call(d.ctx, http.MethodPost, "/v1/organizations", nil, organization, nil); err != nil {
		return fmt.Errorf("create the organization: %w", err)
	}
	var created struct {
		SessionID string `json:"sessionId"`
	}
	conversations := restapi.Conversation{Organization: d.conv.Organization}.Path() + "/conversations"
	if err := d.Call(d.ctx, http.MethodPost, conversations, nil, map[string]string{"conversationId": d.conv.ID}, &created); err != nil {
		return fmt.Errorf("create the conversation: %w", err)
	}
	fmt.Fprintf(d.out, "Conversation  %s, native session %s\n", d.conv.ID, created.SessionID)
	return nil
}

func textBlock(text string) any { return map[string]string{"type": "text", "text": text} }

// turn sends one message and shows what became of it.
func (d *demo) turn(key string, blocks ...any) error {
	body := map[string]any{"messages": []any{map[string]any{"blocks": blocks}}}
	var t turn
	turns := d.conv.Path() + "/turns"
	if err := d.Call(d.ctx, http.MethodPost, turns, http.Header{"Idempotency-Key": {key}}, body, &t); err != nil {
		return fmt.Errorf("send a turn: %w", err)
	}
	if err := d.Call(d.ctx, http.MethodGet, turns+"/"+t.TurnID+"?wait=120s", nil, nil, &t); err != nil {
		return fmt.Errorf("wait for turn %s: %w", t.TurnID, err)
	}
	if t.State != "REPLIED" {
		if t.Error != nil {
			return fmt.Errorf("turn %s ended %s: %s: %s", t.TurnID, t.State, t.Error.Reason, t.Error.Message)
		}
		return fmt.Errorf("turn %s is %s, want REPLIED", t.TurnID, t.State)
	}
	for _, r := range t.Replies {
		fmt.Fprintf(d.out, "< %s\n", r.Text)
		fmt.Fprintf(d.out, "  %s, locator (%s, %s)\n", t.State, r.Locator.SessionID, r.Locator.MessageID)
	}
	fmt.Fprint(d.out, "  timings")
	for _, phase := range []string{"acceptToAttachMs", "coldAdmissionMs", "firstModelRequestMs", "modelToolLoopMs", "persistDeliverMs"} {
		if ms, ok := t.Timings[phase]; ok {
			fmt.Fprintf(d.out, "  %s %.1f", phase, ms)
		}
	}
	fmt.Fprintln(d.out)
	return nil
}

func (d *demo) transcript() error {
	var tr transcript
	if err := d.Call(d.ctx, http.MethodGet, d.conv.Path()+"/transcript", nil, nil, &tr); err != nil {
		return fmt.Errorf("read the transcript: %w", err)
	}
	fmt.Fprintln(d.out, "\nTranscript")
	for _, m := range tr.Messages {
		id, role, text := m.Locator.MessageID, m.Role, m.Text
		if m.Attachment != nil {
			id, role, text = "-", "file", m.Attachment.URI
		}
		fmt.Fprintf(d.out, "  %4s  %-9s  %s\n", id, role, strings.ReplaceAll(text, "\n", "\n                   "))
	}
	return nil
}

func (d *demo) files() error {
	fmt.Fprintln(d.out, "\nFiles")
	for page, err := range d.Files(d.ctx, d.conv, restapi.Listing{}) {
		if err != nil {
			return fmt.Errorf("list the files: %w", err)
		}
		for _, f := range page.Files {
			fmt.Fprintf(d.out, "  %6d bytes  version %s  %s\n", f.Value.Size, f.Value.Version, f.Value.Path)
		}
	}
	return nil
}

func (d *demo) timeline() error {
	fmt.Fprintln(d.out, "\nTimeline")
	for page, err := range d.Timeline(d.ctx, d.conv, "", 0) {
		if err != nil {
			return fmt.Errorf("read the timeline: %w", err)
		}
		for _, r := range page.Records {
			v := r.Value
			fmt.Fprintf(d.out, "  %4d  %s  %-28s  %-8s  %s\n", v.Position, v.Time.Local().Format("15:04:05.000"), v.Actor, v.Action, v.Path)
		}
	}
	return nil
}
