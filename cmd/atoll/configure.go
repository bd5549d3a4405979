package main

import (
	"github.com/spf13/cobra"
)

func newConfig(a *app) *cobra.Command {
	var asJSON, docs bool
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Print the settings in effect and where each came from",
		Long: `Config prints every setting with its value and the source of the value. A setting
has the value of the first of these sources that has one: a flag, the environment
(ATOLL_ and the key in capitals, with _ for each dot), the file
($XDG_CONFIG_HOME/atoll/config.yaml, or the one of --config or ATOLL_CONFIG), the
default. Of secrets only the reference is shown.`,
		Example: `  atoll config
  ATOLL_LOG_LEVEL=debug atoll config --json`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(*cobra.Command, []string) error {
			cfg, err := a.loadConfig()
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
	cmd.Flags().BoolVar(&docs, "docs", false, "print the meaning of each setting")
	return cmd
}
