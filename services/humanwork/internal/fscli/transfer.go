package fscli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"humanwork.internal/services/humanwork/internal/restapi"
)

func catCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "cat REMOTE...",
		Short: "Write files to standard output",
		Example: `  humanwork fs cat workspace/notes.txt
  humanwork fs cat workspace/part-1 workspace/part-2 | sha256sum`,
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: completeRemote(-1),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := open(cmd, conversationScope)
			if err != nil {
				return err
			}
			for _, arg := range args {
				content, _, err := s.read(arg)
				if err != nil {
					return err
				}
				if err := s.copyOut(s.out, content, arg, nil); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

// read begins to read a remote file; name is the last component of its path.
func (s *session) read(arg string) (content restapi.Content, name string, err error) {
	p, err := remote(arg)
	if err != nil {
		return content, "", err
	}
	content, err = s.GetFile(s, s.conv, p)
	if err != nil {
		return content, "", fmt.Errorf("read %s: %w", arg, err)
	}
	return content, p.Name(), nil
}

// copyOut copies a download to its end and closes it.
func (s *session) copyOut(to io.Writer, content restapi.Content, arg string, progress *progress) error {
	defer content.Close()
	defer progress.end()
	n, err := io.Copy(to, progress.reader(broken{content}))
	var torn *brokenError
	switch {
	case err != nil && s.Err() != nil:
		return fmt.Errorf("read %s: %w", arg, context.Cause(s))
	case errors.As(err, &torn):
		return &explainedError{fmt.Errorf("the download of %s broke off after %d bytes: %w", arg, n, torn.err),
			"run the command again; the file may have been changed while it was read"}
	case err != nil:
		return fmt.Errorf("write %s: %w", arg, err)
	}
	return nil
}

// broken marks the errors of a download, apart from those of where it goes.
type broken struct{ io.Reader }

type brokenError struct{ err error }

func (e *brokenError) Error() string { return e.err.Error() }

func (b broken) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = &brokenError{err}
	}
	return n, err
}

func getCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "get REMOTE [FILE]",
		Short: "Copy a file from the server",
		Long: `Copy a file from the server. FILE is a file, which is replaced only when all of it has arrived, a
directory, or "-" for standard output; without it the file gets its own name here.`,
		Example: `  humanwork fs get workspace/report.pdf
  humanwork fs get workspace/report.pdf /tmp/
  humanwork fs get artifacts/outbound/data.tar - | tar t`,
		Args:              cobra.RangeArgs(1, 2),
		ValidArgsFunction: completeRemote(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := open(cmd, conversationScope)
			if err != nil {
				return err
			}
			content, name, err := s.read(args[0])
			if err != nil {
				return err
			}
			defer content.Close()
			to := "."
			if len(args) == 2 {
				to = args[1]
			}
			if to == "-" {
				return s.copyOut(cmd.OutOrStdout(), content, args[0], nil)
			}
			if info, err := os.Stat(to); err == nil && info.IsDir() {
				to = filepath.Join(to, name)
			}
			size := content.Size
			n, err := saveTo(to, 0o666, func(w io.Writer) error {
				return s.copyOut(w, content, args[0], newProgress(cmd.ErrOrStderr(), name, size))
			})
			if err != nil || !s.out.json {
				return err
			}
			return s.out.object(struct {
				File    string `json:"file"`
				Size    int64  `json:"size,string"`
				Version string `json:"version"`
			}{to, n, content.Version})
		},
	}
}

// conditions are the flags of conditional writes.
func conditions(flags *pflag.FlagSet, cond *restapi.Condition) {
	flags.StringVar(&cond.Version, "if-version", "", "only if the file has this `version`")
}

func putCommand() *cobra.Command {
	var cond restapi.Condition
	cmd := &cobra.Command{
		Use:   "put FILE REMOTE",
		Short: "Copy a file to the server",
		Long: `Copy a file to the server, which creates it, or replaces it when all has arrived. FILE is "-" for
standard input. A REMOTE with a slash at the end is a directory, in which the file keeps its name.`,
		Example: `  humanwork fs put report.pdf workspace/
  humanwork fs put --if-absent report.pdf workspace/report.pdf
  tar c src | humanwork fs put - workspace/src.tar`,
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: completeLocalThenRemote,
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := open(cmd, conversationScope)
			if err != nil {
				return err
			}
			to := args[1]
			if strings.HasSuffix(to, "/") && args[0] != "-" {
				to += filepath.Base(args[0])
			}
			p, err := remote(to)
			if err != nil {
				return err
			}
			var f restapi.Item[restapi.File]
			var created bool
			err = withLocal(cmd, args[0], func(r io.Reader, size int64) error {
				f, created, err = s.PutFile(s, s.conv, p, cond, r, size)
				return err
			})
			if err != nil {
				return fmt.Errorf("put %s: %w", to, err)
			}
			if s.out.json {
				return s.out.object(f)
			}
			did := "replaced"
			if created {
				did = "created"
			}
			return s.out.line("%s  %s  version %s  %s", quoted(f.Value.Path), bytesOf(f.Value.Size), harmless(f.Value.Version), did)
		},
	}
	conditions(cmd.Flags(), &cond)
	cmd.Flags().BoolVar(&cond.Absent, "if-absent", false, "only if there is no such file")
	cmd.MarkFlagsMutuallyExclusive("if-version", "if-absent")
	return cmd
}

func attachCommand() *cobra.Command {
	var name string
	var block bool
	cmd := &cobra.Command{
		Use:   "attach FILE",
		Short: "Store an attachment and print the block to send",
		Long: `Store a file as an attachment below artifacts/inbound, and print the content block that a turn has
to hold for it. The same bytes under the same name are stored once.`,
		Example: `  humanwork fs attach report.pdf
  block=$(humanwork fs attach --block report.pdf)
  pdftotext report.pdf - | humanwork fs attach --name report.txt -`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := open(cmd, conversationScope)
			if err != nil {
				return err
			}
			if name == "" {
				if name = filepath.Base(args[0]); args[0] == "-" {
					return errors.New("standard input has no name; give the attachment one with --name")
				}
			}
			var a restapi.Item[restapi.Attachment]
			err = withLocal(cmd, args[0], func(r io.Reader, size int64) error {
				a, err = s.Attach(s, s.conv, name, r, size)
				return err
			})
			switch v := a.Value; {
			case err != nil:
				return fmt.Errorf("attach %s: %w", args[0], err)
			case block:
				return s.out.object(v.Block)
			case s.out.json:
				return s.out.object(a)
			default:
				return s.out.table([][]string{
					{"uri", harmless(v.URI)}, {"size", bytesOf(v.Size)}, {"type", harmless(v.MimeType)}, {"sha256", harmless(v.SHA256)}, {"block", harmless(string(v.Block))},
				})
			}
		},
	}
	cmd.Flags().StringVar(&name, "name", "", "`name` of the attachment, if not that of the file")
	cmd.Flags().BoolVar(&block, "block", false, "print the content block only")
	return cmd
}

func rmCommand() *cobra.Command {
	var cond restapi.Condition
	cmd := &cobra.Command{
		Use:   "rm REMOTE...",
		Short: "Remove files",
		Long:  `Remove files. Those that cannot be removed are told at the end, after all others were.`,
		Example: `  humanwork fs rm workspace/old.txt
  humanwork fs rm --if-version 17-4 workspace/draft.txt`,
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: completeRemote(-1),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := open(cmd, conversationScope)
			if err != nil {
				return err
			}
			var failed []error
			for _, arg := range args {
				p, err := remote(arg)
				if err == nil {
					err = s.DeleteFile(s, s.conv, p, cond)
				}
				if err != nil {
					failed = append(failed, explain(fmt.Errorf("remove %s: %w", arg, err)))
				}
			}
			if failed != nil {
				return joinedError{errors.Join(failed...)}
			}
			return nil
		},
	}
	conditions(cmd.Flags(), &cond)
	return cmd
}

// joinedError is several explained errors, each with its own hint.
type joinedError struct{ error }

func (e joinedError) Unwrap() error { return e.error }
