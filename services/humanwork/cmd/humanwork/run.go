package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"humanwork.internal/pkg/app"
	"humanwork.internal/services/humanwork"
)

func runCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Set up what is missing and serve until interrupted",
		Long: `Set up what is missing (Hermes in a virtual environment of its own, an embedded Postgres) and
serve the REST API until SIGINT or SIGTERM. Several instances run side by side with different
data directories and addresses.`,
		Example: `  humanwork run
  HUMANWORK_MODEL_BASE_URL=https://models.example/v1 HUMANWORK_MODEL_NAME=large \
    HUMANWORK_MODEL_API_KEY=... humanwork run --http-addr 127.0.0.1:9090`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := load(cmd)
			if err != nil {
				return err
			}
			opt := humanwork.Options{Settings: s, SharedDir: s.DataDir, Progress: progress, Logger: app.NewLogger("humanwork")}
			return humanwork.Run(cmd.Context(), opt, func(a humanwork.Address) {
				out := cmd.OutOrStdout()
				fmt.Fprintf(out, "API      %s/v1   (reference: %s/docs)\n", a.BaseURL, a.BaseURL)
				fmt.Fprintf(out, "Token    %s\n", a.Token)
				fmt.Fprintf(out, "Model    %s\n", a.Model)
				fmt.Fprintln(out, "Serving; interrupt to stop.")
			})
		},
	}
	humanwork.AddFlags(cmd.Flags())
	return cmd
}

func setupCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "setup",
		Short: "Install Hermes into the data directory, and nothing else",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := load(cmd)
			if err != nil {
				return err
			}
			version, err := humanwork.Setup(cmd.Context(), s, progress)
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "Hermes %s is ready in %s\n", version, s.DataDir)
			return nil
		},
	}
	humanwork.AddFlags(cmd.Flags())
	return cmd
}
