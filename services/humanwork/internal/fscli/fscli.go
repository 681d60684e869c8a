// Package fscli is `humanwork fs`: an organization's files, audit and backup on the command line,
// over the public REST contract and nothing else.
package fscli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"humanwork.internal/services/humanwork/internal/restapi"
)

// environment names the variable of each flag that has one.
var environment = map[string]string{
	"addr":         "HUMANWORK_HTTP_ADDR",
	"token":        "HUMANWORK_TOKEN",
	"data-dir":     "HUMANWORK_DATA_DIR",
	"organization": "HUMANWORK_ORGANIZATION",
	"conversation": "HUMANWORK_CONVERSATION",
}

// Command is the whole command tree.
func Command() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "fs",
		Short: "An organization's files, their audit and their backup",
		Long: `Read and write the files of a conversation, see who did what to them, and keep copies of an
organization's whole AgentFS, all over the REST API.

Remote paths begin with workspace/, artifacts/inbound/ or artifacts/outbound/; a canonical file
URI names the same file. A name with characters that a terminal would act on is printed in double
quotes with escapes; --json has it as it is. With --json every result is one JSON object a line,
as the API has it.`,
		Example: `  export HUMANWORK_TOKEN=... HUMANWORK_ORGANIZATION=acme HUMANWORK_CONVERSATION=c1
  humanwork fs put report.pdf workspace/report.pdf
  humanwork fs ls -l workspace
  humanwork fs timeline --path workspace/report.pdf`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	f := cmd.PersistentFlags()
	flag := func(name, short, fallback, usage string) {
		f.StringP(name, short, fallback, usage+" [$"+environment[name]+"]")
	}
	flag("addr", "", "127.0.0.1:8080", "`address` or URL of the REST API")
	flag("token", "", "", "bearer `token`; that of the instance in the data directory when unset; prefer the environment, flags can be seen by other users")
	flag("data-dir", "", ".humanwork", "`directory` of the instance whose token to use")
	flag("organization", "o", "", "the organization's `id`")
	flag("conversation", "c", "", "the conversation's `id`")
	f.Bool("json", false, "print JSON, one object a line")
	for name, complete := range map[string]cobra.CompletionFunc{"conversation": completeConversations, "organization": cobra.NoFileCompletions,
		"addr": cobra.NoFileCompletions, "token": cobra.NoFileCompletions} {
		if err := cmd.RegisterFlagCompletionFunc(name, complete); err != nil {
			panic(err) // the flag was declared above
		}
	}
	cmd.AddCommand(lsCommand(), catCommand(), putCommand(), getCommand(), rmCommand(), attachCommand(),
		timelineCommand(), diffCommand(), toolCallsCommand(),
		fsckCommand(), snapshotCommand(), snapshotsCommand(), restoreCommand(), exportCommand())
	for _, sub := range cmd.Commands() {
		explained(sub)
	}
	return cmd
}

// explained makes the errors of a command and those below it tell the fix.
func explained(cmd *cobra.Command) {
	if run := cmd.RunE; run != nil {
		cmd.RunE = func(cmd *cobra.Command, args []string) error { return explain(run(cmd, args)) }
	}
	for _, sub := range cmd.Commands() {
		explained(sub)
	}
}

// session is what one run of a command works with.
type session struct {
	context.Context
	*restapi.Client
	conv restapi.Conversation
	out  printer
	cmd  *cobra.Command
}

// scope says what a command is about.
type scope int

const (
	conversationScope scope = iota // needs a conversation
	eitherScope                    // a conversation, or else the whole organization
	organizationScope              // an organization; a conversation does not matter
)

func open(cmd *cobra.Command, want scope) (*session, error) {
	base, loopback, err := baseURL(setting(cmd, "addr"))
	if err != nil {
		return nil, err
	}
	s := &session{Context: cmd.Context(), cmd: cmd, conv: restapi.Conversation{Organization: setting(cmd, "organization")}}
	if want != organizationScope {
		s.conv.ID = setting(cmd, "conversation")
	}
	switch {
	case s.conv.Organization == "":
		return nil, errors.New("no organization; name it with --organization or HUMANWORK_ORGANIZATION")
	case s.conv.ID == "" && want == conversationScope:
		return nil, errors.New("no conversation; name it with --conversation or HUMANWORK_CONVERSATION")
	}
	token := setting(cmd, "token")
	// A token found on this machine is for the instance on this machine, and is sent nowhere else.
	if token == "" && loopback {
		if token, err = keptToken(setting(cmd, "data-dir")); err != nil {
			return nil, err
		}
	}
	if token == "" {
		return nil, errors.New("no token; set HUMANWORK_TOKEN, or name the data directory of an instance on this machine with --data-dir")
	}
	s.Client = &restapi.Client{BaseURL: base, Token: token}
	json, err := cmd.Flags().GetBool("json")
	s.out = printer{cmd.OutOrStdout(), json}
	return s, err
}

// setting is a flag's value, else its variable's, else the flag's default.
func setting(cmd *cobra.Command, name string) string {
	f := cmd.Flag(name)
	if !f.Changed {
		if v := os.Getenv(environment[name]); v != "" {
			return v
		}
	}
	return f.Value.String()
}

// baseURL reads an address or a URL, and says whether it is on this machine.
func baseURL(addr string) (base string, loopback bool, err error) {
	raw := addr
	if !strings.Contains(raw, "://") {
		raw = "http://" + raw
	}
	u, err := url.Parse(strings.TrimRight(raw, "/"))
	if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return "", false, fmt.Errorf("the address is %q; write host:port, or a URL with http or https", addr)
	}
	ip := net.ParseIP(u.Hostname())
	return u.String(), u.Hostname() == "localhost" || ip.IsLoopback(), nil
}

func keptToken(dataDir string) (string, error) {
	raw, err := os.ReadFile(filepath.Join(dataDir, "secrets", "token"))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("read the instance's token: %w; set HUMANWORK_TOKEN instead", err)
	}
	return strings.TrimSpace(string(raw)), nil
}
