package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"humanwork.internal/pkg/app"
	"humanwork.internal/services/humanwork"
)

func testenvCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "testenv -- COMMAND [ARGUMENT...]",
		Short: "Run a command with a Postgres server, Hermes and the AgentFS SDKs for tests",
		Long: `Run a command with HUMANWORK_TEST_POSTGRES_URL, HUMANWORK_TEST_HERMES and, of the AgentFS SDKs,
HUMANWORK_TEST_AGENTFS_PYTHON (an interpreter) and HUMANWORK_TEST_AGENTFS_NODE (a directory with
bin/node and node_modules) set. All are set up in the data directory when missing. The exit status
is the command's.`,
		Example: `  humanwork testenv -- go test ./services/ingress/...`,
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := load(cmd)
			if err != nil {
				return err
			}
			var status *exec.ExitError
			err = humanwork.TestEnvironment(cmd.Context(), s, progress, app.NewLogger("testenv"), func(ctx context.Context, env []string) error {
				c := exec.CommandContext(ctx, args[0], args[1:]...)
				c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
				c.Env = append(os.Environ(), env...)
				// A terminal's interrupt reaches the command by itself; a signal to this process alone is passed on.
				c.Cancel = func() error { return c.Process.Signal(syscall.SIGTERM) }
				c.WaitDelay = time.Minute
				return c.Run()
			})
			if errors.As(err, &status) && status.Exited() {
				os.Exit(status.ExitCode())
			}
			return err
		},
	}
	humanwork.AddFlags(cmd.Flags())
	return cmd
}
