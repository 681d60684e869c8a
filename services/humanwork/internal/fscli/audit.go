package fscli

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
)

func timelineCommand() *cobra.Command {
	var path string
	var after int64
	cmd := &cobra.Command{
		Use:   "timeline",
		Short: "Show who did what to the files, oldest first",
		Long: `Show the ledger: every mutation and every open that reached the service, with position, time,
actor, action, size after it and path. Without a conversation that of the whole organization, with
paths from the root of its AgentFS; this needs an administrator's token.`,
		Example: `  humanwork fs timeline --path workspace/report.pdf
  humanwork fs timeline --after 120 --json
  humanwork fs timeline --conversation ''`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := open(cmd, eitherScope)
			if err != nil {
				return err
			}
			if strings.HasPrefix(path, "file:") {
				p, err := remote(path)
				if err != nil {
					return err
				}
				path = p.String()
			}
			for page, err := range s.Timeline(s, s.conv, path, after) {
				if err != nil {
					return fmt.Errorf("read the timeline: %w", err)
				}
				rows := make([][]string, 0, len(page.Records))
				for _, r := range page.Records {
					v := r.Value
					if s.out.json {
						if err := s.out.object(r); err != nil {
							return err
						}
						continue
					}
					what := quoted(v.Path)
					if v.Target != "" {
						what += " -> " + quoted(v.Target)
					}
					rows = append(rows, []string{strconv.FormatInt(v.Position, 10), timeOf(v.Time), quoted(v.Actor), quoted(v.Action), bytesOf(v.Size), what})
				}
				if err := s.out.table(rows); err != nil {
					return err
				}
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&path, "path", "", "only what happened to this `path` or below it")
	cmd.Flags().Int64Var(&after, "after", 0, "only what came after this `position`")
	complete(cmd, "path", completeRemote(1))
	return cmd
}

func diffCommand() *cobra.Command {
	var from, to int64
	cmd := &cobra.Command{
		Use:   "diff",
		Short: "Show which files differ between two points",
		Long: `Show which files differ between two positions of the ledger, by default between the base, which is
what was there before anything was written, and now. Without a conversation those of the whole
organization; this needs an administrator's token.`,
		Example: `  humanwork fs diff
  humanwork fs diff --from 120
  humanwork fs diff --from 120 --to 180 --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := open(cmd, eitherScope)
			if err != nil {
				return err
			}
			for page, err := range s.Diff(s, s.conv, from, to) {
				if err != nil {
					return fmt.Errorf("compare: %w", err)
				}
				rows := make([][]string, 0, len(page.Differences))
				for _, d := range page.Differences {
					if s.out.json {
						if err := s.out.object(d); err != nil {
							return err
						}
						continue
					}
					what := d.Value.Path
					if d.Value.Directory && !strings.HasSuffix(what, "/") {
						what += "/"
					}
					what = quoted(what)
					if d.Value.PreviousPath != "" {
						what = quoted(d.Value.PreviousPath) + " -> " + what
					}
					rows = append(rows, []string{strings.ToLower(strings.TrimPrefix(harmless(d.Value.Kind), "KIND_")), what})
				}
				if err := s.out.table(rows); err != nil {
					return err
				}
			}
			return nil
		},
	}
	cmd.Flags().Int64Var(&from, "from", 0, "earlier `position`; 0 is the base")
	cmd.Flags().Int64Var(&to, "to", 0, "later `position`; 0 is now")
	return cmd
}

// maxCell is how many characters of a call's parameters a table shows.
const maxCell = 80

func toolCallsCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "toolcalls",
		Short: "Show the native tool calls, oldest first",
		Long: `Show AgentFS's own record of native tool calls: id, start, duration, status, name, and the beginning
of the parameters or of the error. Without a conversation those of the whole organization; this
needs an administrator's token.`,
		Example: `  humanwork fs toolcalls
  humanwork fs toolcalls --json | jq -r 'select(.status == "error") | .error'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := open(cmd, eitherScope)
			if err != nil {
				return err
			}
			for page, err := range s.ToolCalls(s, s.conv) {
				if err != nil {
					return fmt.Errorf("read the tool calls: %w", err)
				}
				rows := make([][]string, 0, len(page.ToolCalls))
				for _, c := range page.ToolCalls {
					v := c.Value
					if s.out.json {
						if err := s.out.object(c); err != nil {
							return err
						}
						continue
					}
					took := "-"
					if v.Status != "pending" {
						took = (time.Duration(v.DurationMs) * time.Millisecond).String()
					}
					what := v.Parameters
					if v.Error != "" {
						what = v.Error
					}
					rows = append(rows, []string{strconv.FormatInt(v.ID, 10), timeOf(v.StartTime), took, harmless(v.Status), quoted(v.Name), clip(harmless(what), maxCell)})
				}
				if err := s.out.table(rows); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

// clip cuts a text to n characters.
func clip(s string, n int) string {
	if utf8.RuneCountInString(s) <= n {
		return s
	}
	return string([]rune(s)[:n-3]) + "..."
}
