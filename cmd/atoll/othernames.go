package main

import "github.com/spf13/cobra"

// otherCommands has advice for commands of docker, kubectl and fly that atoll does not have.
var otherCommands = map[string]string{
	"build":     "Atoll builds no images: use docker build, and atoll run --image; atoll image build builds virtual machines",
	"clone":     "use atoll snapshot create SANDBOX, and atoll create --snapshot ID; for a repository, atoll workspace",
	"commit":    "use atoll snapshot create SANDBOX, and atoll create --snapshot ID",
	"compose":   "create each sandbox with atoll create",
	"console":   "use atoll shell SANDBOX",
	"container": "leave out container, as in atoll ls and atoll rm",
	"delete":    "use atoll rm SANDBOX",
	"describe":  "use atoll inspect SANDBOX",
	"destroy":   "use atoll rm SANDBOX",
	"diff":      "use atoll workspace for changes of a repository, or atoll cp to fetch files",
	"export":    "use atoll cp SANDBOX:PATH - for a tar stream",
	"fork":      "use atoll snapshot create SANDBOX, and atoll create --snapshot ID",
	"get":       "use atoll ls, or atoll inspect SANDBOX",
	"images":    "use atoll image ls",
	"info":      "use atoll doctor",
	"load":      "use atoll run --image docker-archive:FILE",
	"network":   "use --network and --allow of atoll run and atoll create",
	"port":      "use atoll port-forward SANDBOX PORT, or atoll inspect for published ports",
	"push":      "Atoll publishes no images: use docker push",
	"remove":    "use atoll rm SANDBOX",
	"rename":    "a sandbox retains its name: create another one with atoll create --name",
	"restart":   "use atoll stop SANDBOX, and then atoll start SANDBOX",
	"rmi":       "use atoll image rm IMAGE",
	"save":      "use atoll cp SANDBOX:PATH - for files, or atoll snapshot create SANDBOX",
	"unpause":   "use atoll resume SANDBOX",
	"update":    "a sandbox retains its limits: create another one; atoll extend changes the expiry",
}

// newOtherCommands returns hidden commands that fail with the advice of otherCommands.
func newOtherCommands() []*cobra.Command {
	var cmds []*cobra.Command
	for name, advice := range otherCommands {
		cmds = append(cmds, &cobra.Command{
			Use: name, Hidden: true, DisableFlagParsing: true, ValidArgsFunction: cobra.NoFileCompletions,
			RunE: func(cmd *cobra.Command, _ []string) error {
				return usageErrorf("unknown command %q for %q: %s", name, cmd.Parent().CommandPath(), advice)
			},
		})
	}
	return cmds
}
