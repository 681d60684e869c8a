package fscli

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"humanwork.internal/services/humanwork/internal/restapi"
)

// A person waits for a completion after each press of a key, and reads a screen of them.
const (
	completionTime = 2 * time.Second
	maxCompletions = 200
)

func complete(cmd *cobra.Command, flag string, f cobra.CompletionFunc) {
	if err := cmd.RegisterFlagCompletionFunc(flag, f); err != nil {
		panic(err) // the flag was declared just before
	}
}

// completeRemote completes paths on the server for the first n arguments, -1: for all.
func completeRemote(n int) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if n >= 0 && len(args) >= n {
			// What follows is a local file, if anything.
			return nil, cobra.ShellCompDirectiveDefault
		}
		s, stop, ok := ask(cmd, conversationScope)
		if !ok {
			return nil, cobra.ShellCompDirectiveError
		}
		defer stop()
		directive := cobra.ShellCompDirectiveNoFileComp
		var out []cobra.Completion
		for page, err := range s.Files(s, s.conv, restapi.Listing{Prefix: begun, Shallow: true, PageSize: maxCompletions}) {
			if err != nil {
				return nil, cobra.ShellCompDirectiveError
			}
			for _, e := range entriesOf(page) {
				// A name with a line end in it would be several completions to the shell.
				if harmless(e.path) != e.path {
					continue
				}
				out = append(out, e.path)
				if strings.HasSuffix(e.path, "/") {
					directive |= cobra.ShellCompDirectiveNoSpace
				}
			}
			if len(out) >= maxCompletions {
				break
			}
		}
		return out, directive
	}
}

// completeLocalThenRemote completes the arguments of put.
func completeLocalThenRemote(cmd *cobra.Command, args []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
	switch len(args) {
	case 0:
		return nil, cobra.ShellCompDirectiveDefault
	case 1:
		return completeRemote(-1)(cmd, args, begun)
	}
	return nil, cobra.ShellCompDirectiveNoFileComp
}

func completeConversations(cmd *cobra.Command, _ []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
	s, stop, ok := ask(cmd, organizationScope)
	if !ok {
		return nil, cobra.ShellCompDirectiveError
	}
	defer stop()
	var out []cobra.Completion
	for page, err := range s.Conversations(s, s.conv.Organization) {
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		for _, c := range page.Conversations {
			if strings.HasPrefix(c.ID, begun) && harmless(c.ID) == c.ID {
				out = append(out, c.ID)
			}
		}
		if len(out) >= maxCompletions {
			break
		}
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}

func completeSnapshots(cmd *cobra.Command, args []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
	s, stop, ok := ask(cmd, organizationScope)
	if !ok || len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	defer stop()
	list, err := s.Snapshots(s, s.conv.Organization)
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var out []cobra.Completion
	for _, n := range list {
		if strings.HasPrefix(n.Value.Name, begun) && harmless(n.Value.Name) == n.Value.Name {
			out = append(out, n.Value.Name)
		}
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}

// ask opens a session that ends by itself.
func ask(cmd *cobra.Command, want scope) (*session, context.CancelFunc, bool) {
	s, err := open(cmd, want)
	if err != nil {
		cobra.CompErrorln(harmless(err.Error()))
		return nil, nil, false
	}
	parent := s.Context
	if parent == nil {
		parent = context.Background()
	}
	var stop context.CancelFunc
	s.Context, stop = context.WithTimeout(parent, completionTime)
	return s, stop, true
}
