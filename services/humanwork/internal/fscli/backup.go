package fscli

import (
	"errors"
	"fmt"
	"io"
	"regexp"

	"github.com/spf13/cobra"

	"humanwork.internal/services/humanwork/internal/restapi"
)

func fsckCommand() *cobra.Command {
	var repair bool
	cmd := &cobra.Command{
		Use:   "fsck",
		Short: "Check an organization's AgentFS, and repair it",
		Long: `Look for every known fault in one consistent view, while others work on. With --repair they are
mended, after a snapshot was taken. The exit status is 1 when faults remain. This needs an
administrator's token.`,
		Example: `  humanwork fs fsck
  humanwork fs fsck --repair`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := open(cmd, organizationScope)
			if err != nil {
				return err
			}
			got, err := s.CheckAgentFS(s, s.conv.Organization, repair)
			if err != nil {
				return fmt.Errorf("check the AgentFS of %s: %w", s.conv.Organization, err)
			}
			return s.report(got, repair)
		},
	}
	cmd.Flags().BoolVar(&repair, "repair", false, "mend what can be mended")
	return cmd
}

func (s *session) report(got restapi.Item[restapi.Check], repair bool) error {
	v := got.Value
	remain := 0
	rows := make([][]string, 0, len(v.Faults))
	for _, f := range v.Faults {
		state := "repaired"
		if !f.Repaired {
			state = "found"
			remain++
		}
		rows = append(rows, []string{state, harmless(f.Kind), harmless(f.Message)})
	}
	if s.out.json {
		if err := s.out.object(got); err != nil {
			return err
		}
	} else {
		if err := s.out.table(rows); err != nil {
			return err
		}
		if err := s.out.line("%d inodes, %s and %d ledger records checked; %d faults, %d of them remain",
			v.Inodes, bytesOf(v.Bytes), v.LedgerRecords, len(v.Faults), remain); err != nil {
			return err
		}
		if v.Snapshot != "" {
			if err := s.out.line("kept as it was before: snapshot %s", harmless(v.Snapshot)); err != nil {
				return err
			}
		}
	}
	switch {
	case v.Truncated && remain > 0:
		return &explainedError{errors.New("more than the faults listed remain"), "run humanwork fs fsck --repair until none is left"}
	case remain > 0 && repair:
		return &explainedError{fmt.Errorf("%d faults could not be repaired", remain), "restore a snapshot or an export from before them: humanwork fs restore"}
	case remain > 0:
		return &explainedError{fmt.Errorf("%d faults remain", remain), "run humanwork fs fsck --repair"}
	}
	return nil
}

var snapshotName = regexp.MustCompile(`^[a-z0-9-]{1,63}$`)

func snapshotCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "snapshot [NAME]",
		Short: "Keep a copy beside the database",
		Long: `Keep a consistent copy of an organization's AgentFS beside it, taken while others write. Without
NAME one is made from the time. This needs an administrator's token.`,
		Example: `  humanwork fs snapshot before-the-migration`,
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := open(cmd, organizationScope)
			if err != nil {
				return err
			}
			name := ""
			if len(args) == 1 {
				name = args[0]
			}
			if name != "" && !snapshotName.MatchString(name) {
				return fmt.Errorf("the name is %q; a snapshot's has 1 to 63 of a-z, 0-9 and -", name)
			}
			got, err := s.CreateSnapshot(s, s.conv.Organization, name)
			if err != nil {
				return fmt.Errorf("take a snapshot: %w", err)
			}
			return s.printSnapshots(got)
		},
	}
}

func (s *session) printSnapshots(list ...restapi.Item[restapi.Snapshot]) error {
	rows := make([][]string, 0, len(list))
	for _, n := range list {
		if s.out.json {
			if err := s.out.object(n); err != nil {
				return err
			}
			continue
		}
		rows = append(rows, []string{quoted(n.Value.Name), timeOf(n.Value.CreateTime), bytesOf(n.Value.Size)})
	}
	return s.out.table(rows)
}

func snapshotsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "snapshots",
		Short: "List the copies that were kept, newest first",
		Example: `  humanwork fs snapshots
  humanwork fs snapshots rm before-the-migration`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := open(cmd, organizationScope)
			if err != nil {
				return err
			}
			list, err := s.Snapshots(s, s.conv.Organization)
			if err != nil {
				return fmt.Errorf("list the snapshots: %w", err)
			}
			return s.printSnapshots(list...)
		},
	}
	cmd.AddCommand(&cobra.Command{
		Use:               "rm NAME",
		Short:             "Remove a snapshot",
		Example:           `  humanwork fs snapshots rm before-the-migration`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: completeSnapshots,
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := open(cmd, organizationScope)
			if err != nil {
				return err
			}
			if err := s.DeleteSnapshot(s, s.conv.Organization, args[0]); err != nil {
				return fmt.Errorf("remove snapshot %s: %w", args[0], err)
			}
			return nil
		},
	})
	return cmd
}

func restoreCommand() *cobra.Command {
	var snapshot string
	var yes bool
	cmd := &cobra.Command{
		Use:   "restore {FILE | --snapshot NAME}",
		Short: "Replace an organization's AgentFS by a copy",
		Long: `Replace all files of an organization, and their audit, by a snapshot or by a database in a file, "-"
for standard input: one that "humanwork fs export" wrote, or another of AgentFS 0.4. A copy that
fails a check changes nothing. What was there before is kept as a snapshot. The organization's id
has to be typed, unless --yes is given. This needs an administrator's token.`,
		Example: `  humanwork fs restore --snapshot before-the-migration
  humanwork fs restore --yes acme.db`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := open(cmd, organizationScope)
			if err != nil {
				return err
			}
			switch org := s.conv.Organization; {
			case (len(args) == 1) == (snapshot != ""):
				return errors.New("name either a file or a --snapshot")
			case yes:
			case len(args) == 1 && args[0] == "-":
				return errors.New("standard input is the database and cannot confirm; give --yes")
			default:
				question := fmt.Sprintf("This replaces all files of %s. Type its id to go on: ", harmless(org))
				if err := confirm(cmd, question, org); err != nil {
					return err
				}
			}
			return s.restore(args, snapshot)
		},
	}
	cmd.Flags().StringVar(&snapshot, "snapshot", "", "`name` of the snapshot to restore")
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	complete(cmd, "snapshot", completeSnapshots)
	return cmd
}

func (s *session) restore(args []string, snapshot string) (err error) {
	var got restapi.Item[restapi.Restored]
	if snapshot != "" {
		got, err = s.RestoreSnapshot(s, s.conv.Organization, snapshot)
	} else {
		err = withLocal(s.cmd, args[0], func(r io.Reader, size int64) error {
			if size == 0 {
				return fmt.Errorf("%s is empty, and no database", args[0])
			}
			got, err = s.Restore(s, s.conv.Organization, r, size)
			return err
		})
	}
	if err != nil {
		return fmt.Errorf("restore the AgentFS of %s: %w", s.conv.Organization, err)
	}
	if s.out.json {
		return s.out.object(got)
	}
	return s.out.line("restored; kept as it was before: snapshot %s", quoted(got.Value.Previous.Name))
}

func exportCommand() *cobra.Command {
	var snapshot string
	cmd := &cobra.Command{
		Use:   "export FILE",
		Short: "Copy an organization's AgentFS to a file",
		Long: `Copy an organization's AgentFS, as it is now or as a snapshot has it, to a file, "-" for standard
output: an AgentFS 0.4 database that every AgentFS SDK opens. It holds private configuration with
credentials; only its owner can read the file. This needs an administrator's token.`,
		Example: `  humanwork fs export acme.db
  humanwork fs export --snapshot before-the-migration - | zstd > acme.db.zst`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := open(cmd, organizationScope)
			if err != nil {
				return err
			}
			content, err := s.Export(s, s.conv.Organization, snapshot)
			if err != nil {
				return fmt.Errorf("export the AgentFS of %s: %w", s.conv.Organization, err)
			}
			what := "the AgentFS of " + s.conv.Organization
			if args[0] == "-" {
				return s.copyOut(cmd.OutOrStdout(), content, what, nil)
			}
			n, err := saveTo(args[0], 0o600, func(w io.Writer) error {
				return s.copyOut(w, content, what, newProgress(cmd.ErrOrStderr(), args[0], content.Size))
			})
			if err != nil || !s.out.json {
				return err
			}
			return s.out.object(struct {
				File string `json:"file"`
				Size int64  `json:"size,string"`
			}{args[0], n})
		},
	}
	cmd.Flags().StringVar(&snapshot, "snapshot", "", "`name` of the snapshot to copy")
	complete(cmd, "snapshot", completeSnapshots)
	return cmd
}
