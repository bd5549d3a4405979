//go:build !client

package main

import (
	"github.com/spf13/cobra"
)

// commands are all commands, in the order of the help.
var commands = []command{
	{"run", groupRun, newRun},
	{"mcp", groupRun, newMCP},
	{"exec", groupRun, newExec},
	{"shell", groupRun, newShell},
	{"agent", groupRun, newAgent},
	{"attach", groupRun, newAttach},
	{"logs", groupRun, newLogs},
	{"ps", groupRun, newPs},
	{"kill", groupRun, newKill},
	{"cp", groupRun, newCp},
	{"port-forward", groupRun, newPortForward},
	{"open", groupRun, newOpen},

	{"create", groupLife, newCreate},
	{"start", groupLife, newStart},
	{"stop", groupLife, newStop},
	{"pause", groupLife, newPause},
	{"resume", groupLife, newResume},
	{"extend", groupLife, newExtend},
	{"rm", groupLife, newRm},
	{"ls", groupLife, newLs},
	{"inspect", groupLife, newInspect},
	{"stats", groupLife, newStats},
	{"watch", groupLife, newWatch},
	{"wait", groupLife, newWait},
	{"net", groupLife, newNet},
	{"secret", groupLife, newSecret},
	{"reconcile", groupLife, newReconcile},

	{"pull", groupKeep, newPull},
	{"image", groupKeep, newImage},
	{"snapshot", groupKeep, newSnapshot},
	{"volume", groupKeep, newVolume},
	{"workspace", groupKeep, newWorkspace},
	{"session", groupKeep, newSession},
	{"pool", groupKeep, newPool},
	{"sync", groupKeep, newSync},
	{"project", groupKeep, newProject},
	{"provider", groupKeep, newProvider},
	{"key", groupKeep, newKey},
	{"audit", groupKeep, newAudit},
	{"prune", groupKeep, newPrune},

	{"serve", groupSystem, newServe},
	{"login", groupSystem, newLogin},
	{"logout", groupSystem, newLogout},
	{"context", groupSystem, newContext},
	{"doctor", groupSystem, newDoctor},
	{"config", groupSystem, newConfig},
	{"system", groupSystem, newSystem},
	{"version", groupSystem, newVersion},
	{"upgrade", groupSystem, newUpgrade},
}

// findRoot returns the command atoll with the command of args, or with all commands if there is none.
func (a *app) findRoot(args []string) (*cobra.Command, error) {
	if root := newPartialRoot(a, namedCommands(args)); hasCommand(root, args) {
		return root, nil
	}
	return newRoot(a), nil
}

// newRoot returns the command atoll with all commands.
func newRoot(a *app) *cobra.Command {
	root := newPartialRoot(a, commands)
	root.AddCommand(newOtherCommands()...)
	root.SetHelpCommand(newHelp())
	root.SetHelpCommandGroupID(groupSystem)
	root.SetCompletionCommandGroupID(groupSystem)
	completeFlags(a, root)
	return root
}
