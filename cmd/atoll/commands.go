//go:build !client

package main

import (
	"github.com/spf13/cobra"
)

// addCommands adds all commands to root, with add in the order of the help.
func addCommands(a *app, root *cobra.Command, add func(group string, cmds ...*cobra.Command)) {
	add(groupRun, newRun(a), newMCP(a), newExec(a), newShell(a), newAttach(a), newLogs(a), newPs(a), newKill(a), newCp(a), newPortForward(a), newOpen(a))
	add(groupLife, newCreate(a), newStart(a), newStop(a), newPause(a), newResume(a), newExtend(a), newRm(a), newLs(a), newInspect(a), newStats(a), newWatch(a), newWait(a), newSecret(a), newReconcile(a))
	add(groupKeep, newPull(a), newImage(a), newSnapshot(a), newVolume(a), newWorkspace(a), newSession(a), newPool(a), newSync(a), newProject(a), newProvider(a), newKey(a), newAudit(a), newPrune(a))
	add(groupSystem, newServe(a), newLogin(a), newLogout(a), newContext(a), newDoctor(a), newConfig(a), newSystem(a), newVersion(a), newUpgrade(a))
	root.AddCommand(newOtherCommands()...)
	root.SetHelpCommand(newHelp())
	root.SetHelpCommandGroupID(groupSystem)
	root.SetCompletionCommandGroupID(groupSystem)
}
