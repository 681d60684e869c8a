package fscli

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"humanwork.internal/services/humanwork/internal/restapi"
)

func lsCommand() *cobra.Command {
	var long, recursive bool
	cmd := &cobra.Command{
		Use:   "ls [REMOTE]",
		Short: "List files",
		Long: `List the files and directories of a directory, or one file. Paths are printed as the other
commands take them. Without REMOTE the roots are listed.`,
		Example: `  humanwork fs ls -l workspace
  humanwork fs ls -R
  humanwork fs ls -R --json | jq -r .uri`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: completeRemote(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := open(cmd, conversationScope)
			if err != nil {
				return err
			}
			dir := ""
			if len(args) == 1 {
				dir = args[0]
			}
			return s.ls(dir, long, recursive)
		},
	}
	cmd.Flags().BoolVarP(&long, "long", "l", false, "show permissions, size and time as well")
	cmd.Flags().BoolVarP(&recursive, "recursive", "R", false, "list everything below")
	return cmd
}

// entry is a line of a listing: a file, or a directory with a slash at the end.
type entry struct {
	path string
	file *restapi.Item[restapi.File]
}

func (s *session) ls(arg string, long, recursive bool) error {
	dir := strings.TrimSuffix(arg, "/")
	if strings.HasPrefix(dir, "file:") {
		p, err := remote(dir)
		if err != nil {
			return err
		}
		dir = p.String()
	}
	prefix := ""
	if dir != "" {
		prefix = dir + "/"
	}
	empty := true
	for page, err := range s.Files(s, s.conv, restapi.Listing{Prefix: prefix, Shallow: !recursive}) {
		if err != nil {
			return fmt.Errorf("list %s: %w", orAll(arg), err)
		}
		entries := entriesOf(page)
		empty = empty && len(entries) == 0
		if err := s.printEntries(entries, long); err != nil {
			return err
		}
	}
	if !empty || dir == "" {
		return nil
	}
	// Nothing is below it: a file, an empty directory, or nothing. The names that begin with a name
	// come in order, so it is the first of them if it is there.
	for page, err := range s.Files(s, s.conv, restapi.Listing{Prefix: dir, Shallow: true, PageSize: 2}) {
		if err != nil {
			return fmt.Errorf("list %s: %w", arg, err)
		}
		for _, e := range entriesOf(page) {
			switch {
			case e.path == prefix:
				return nil
			case e.path == dir && !strings.HasSuffix(arg, "/"):
				return s.printEntries([]entry{e}, long)
			}
		}
		break
	}
	if slices.Contains([]string{"workspace", "artifacts", "artifacts/inbound", "artifacts/outbound"}, dir) {
		return nil
	}
	return &restapi.Error{Reason: "FILE_NOT_FOUND", Message: "no file or directory " + arg}
}

func orAll(arg string) string {
	if arg == "" {
		return "all files"
	}
	return arg
}

// entriesOf returns a page in the order of the whole: by path, component by component.
func entriesOf(page restapi.FilePage) []entry {
	out := make([]entry, 0, len(page.Files)+len(page.Directories))
	for i := range page.Files {
		out = append(out, entry{page.Files[i].Value.Path, &page.Files[i]})
	}
	for _, d := range page.Directories {
		out = append(out, entry{d, nil})
	}
	slices.SortStableFunc(out, func(a, b entry) int {
		return slices.Compare(strings.Split(strings.TrimSuffix(a.path, "/"), "/"), strings.Split(strings.TrimSuffix(b.path, "/"), "/"))
	})
	return out
}

func (s *session) printEntries(entries []entry, long bool) error {
	rows := make([][]string, 0, len(entries))
	for _, e := range entries {
		switch {
		case s.out.json && e.file == nil:
			if err := s.out.object(map[string]any{"path": e.path, "directory": true}); err != nil {
				return err
			}
		case s.out.json:
			if err := s.out.object(e.file); err != nil {
				return err
			}
		case !long:
			rows = append(rows, []string{quoted(e.path)})
		case e.file == nil:
			rows = append(rows, []string{"d", "-", "-", quoted(e.path)})
		default:
			f := e.file.Value
			rows = append(rows, []string{modeOf(f.Mode), strconv.FormatInt(f.Size, 10), timeOf(f.ModifyTime), quoted(e.path)})
		}
	}
	return s.out.table(rows)
}
