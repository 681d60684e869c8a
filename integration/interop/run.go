package interop

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"humanwork.internal/pkg/agentfs"
)

// Shown is what Run saw.
type Shown struct {
	// Tree is what is in the exported database, as all three see it.
	Tree Tree
	// Files, Bytes, Links (symbolic) and ToolCalls are how much of it there is.
	Files, Bytes, Links, ToolCalls int64
	// Changed are databases that an SDK changed, by its name: exports to restore, not adopted yet.
	Changed map[string]string
	// After is what must be in them.
	After map[string]Expected
}

// String has the figures in a few words.
func (s Shown) String() string {
	return fmt.Sprintf("%d files, %d bytes, %d links and %d tool calls equal for Python, TypeScript and us; both SDKs' changes adopted",
		s.Files, s.Bytes, s.Links, s.ToolCalls)
}

// Run shows on an exported database that both SDKs and pkg/agentfs see the same names, sizes, bytes,
// links, tool calls and key-value pairs, and that what each SDK then changes in it is there, in new
// versions, once it was adopted. The changes are made below a directory of the database, "" for its
// root. Dir gets copies; the exported file is not changed.
func Run(ctx context.Context, env Environment, exported, dir, below string) (Shown, error) {
	shown := Shown{Changed: map[string]string{}, After: map[string]Expected{}}
	ours := filepath.Join(dir, "ours.db")
	if err := duplicate(exported, ours); err != nil {
		return shown, err
	}
	if err := agentfs.Adopt(ctx, ours); err != nil {
		return shown, fmt.Errorf("adopt the export: %w", err)
	}
	tree, err := View(ctx, ours)
	if err != nil {
		return shown, fmt.Errorf("read the export: %w", err)
	}
	shown.count(tree)
	for _, sdk := range env.SDKs() {
		file := filepath.Join(dir, strings.ToLower(sdk.Name)+".db")
		if err := duplicate(exported, file); err != nil {
			return shown, err
		}
		theirs, err := sdk.View(ctx, file)
		if err != nil {
			return shown, err
		}
		if err := same("pkg/agentfs and the "+sdk.Name+" SDK", tree.Differences(theirs)); err != nil {
			return shown, err
		}
		root := below + "/made by " + sdk.Name
		for found := true; found; _, found = tree.Find(root) {
			root += "'"
		}
		operations, whole := sdk.Changes(root)
		if err := sdk.Change(ctx, file, operations); err != nil {
			return shown, err
		}
		shown.Changed[sdk.Name], shown.After[sdk.Name] = file, ExpectedOf(tree).After(operations, whole)
		if err := adopted(ctx, sdk, file, shown.After[sdk.Name]); err != nil {
			return shown, err
		}
	}
	return shown, nil
}

// adopted shows that a database which an SDK changed holds what is expected once a copy was adopted.
func adopted(ctx context.Context, sdk SDK, file string, want Expected) error {
	theirs, err := sdk.View(ctx, file)
	if err != nil {
		return err
	}
	back := file + ".back"
	if err := duplicate(file, back); err != nil {
		return err
	}
	if err := agentfs.Adopt(ctx, back); err != nil {
		return fmt.Errorf("adopt what the %s SDK changed: %w", sdk.Name, err)
	}
	tree, err := View(ctx, back)
	if err != nil {
		return fmt.Errorf("read what the %s SDK changed: %w", sdk.Name, err)
	}
	if err := same("what was asked of the "+sdk.Name+" SDK and pkg/agentfs", want.Differences(ExpectedOf(tree))); err != nil {
		return err
	}
	return same("pkg/agentfs and the "+sdk.Name+" SDK that changed it", forgiven(tree).Differences(forgiven(theirs)))
}

// forgiven leaves out what an SDK itself has wrong: the bytes of a file truncated to more than it had,
// and the size of a symbolic link, which TypeScript counts in UTF-16 units.
func forgiven(t Tree) Tree {
	nodes := make([]Node, len(t.Nodes))
	for i, n := range t.Nodes {
		if strings.HasSuffix(n.Path, "/"+Longer) {
			n.Read, n.SHA256 = 0, ""
		}
		if n.Mode&typeMask == typeLink {
			n.Size = 0
		}
		nodes[i] = n
	}
	t.Nodes = nodes
	return t
}

func (s *Shown) count(t Tree) {
	s.Tree = t
	for _, n := range t.Nodes {
		switch n.Mode & typeMask {
		case typeFile:
			s.Files++
			s.Bytes += n.Size
		case typeLink:
			s.Links++
		}
	}
	s.ToolCalls = int64(len(t.ToolCalls))
}

func same(between string, differences []string) error {
	if len(differences) == 0 {
		return nil
	}
	const shown = 5
	return fmt.Errorf("%d differences between %s:\n%s", len(differences), between, strings.Join(differences[:min(shown, len(differences))], "\n"))
}

// duplicate copies a database that nobody has open, the file alone: that is what a person would hand on.
func duplicate(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return fmt.Errorf("copy a database: %w", err)
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("copy a database: %w", err)
	}
	if _, err = io.Copy(out, in); err != nil {
		out.Close()
		return fmt.Errorf("copy a database: %w", err)
	}
	if err := out.Close(); err != nil {
		return fmt.Errorf("copy a database: %w", err)
	}
	return nil
}
