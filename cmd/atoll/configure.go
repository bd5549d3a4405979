package main

import (
	"github.com/spf13/cobra"
)

func newConfig(a *app) *cobra.Command {
	var asJSON, docs bool
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Print the settings in effect and where each came from",
		Long: `Config prints every setting with its value and where that came from. A setting is
taken from a flag, else from the environment (ATOLL_ and the key in capitals,
with _ for each dot), else from the file ($XDG_CONFIG_HOME/atoll/config.yaml, or
what --config or ATOLL_CONFIG names), else it is the default. Of secrets only
the reference is shown.`,
		Example: `  atoll config
  ATOLL_LOG_LEVEL=debug atoll config --json`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(*cobra.Command, []string) error {
			cfg, err := a.config()
			if err != nil {
				return err
			}
			if asJSON {
				return a.printJSON(cfg.Values())
			}
			rows := [][]string{{"KEY", "VALUE", "FROM"}}
			if docs {
				rows[0] = append(rows[0], "MEANING")
			}
			for _, v := range cfg.Values() {
				row := []string{v.Key, orDash(v.Value), v.From}
				if docs {
					row = append(row, v.Doc)
				}
				rows = append(rows, row)
			}
			return a.printTable(rows)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON array")
	cmd.Flags().BoolVar(&docs, "docs", false, "say what each setting means")
	return cmd
}
