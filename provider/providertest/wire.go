package providertest

import (
	"slices"
	"strings"
)

// wirePromises are the promises that can break between a caller and the guest: bytes in both directions
// and their end, signals, sizes of terminals, and connections closed in one direction only. They also
// include those that depend on the environment of the guest: the first process, the default user, the
// network, and the watching of files.
var wirePromises = []string{
	"exec/exit codes come back",
	"exec/a process killed by a signal exits with 128 plus its number",
	"exec/stdout and stderr stay separate",
	"exec/stdin arrives completely",
	"exec/8 MiB of arbitrary bytes go in and come out in order",
	"output/Attach starts at any offset, or from now",
	"output/a slow attached reader slows the process down and misses nothing",
	"time/the context of Exec bounds the start, not the process",
	"time/a signal arrives and can be caught",
	"tree/orphans are reaped",
	"tty/Resize arrives, and SIGWINCH with it",
	"tty/^C interrupts",
	"tty/a main process may have a terminal",
	"files/64 MiB of arbitrary bytes survive the round trip",
	"files/a tree survives WriteTar and ReadTar",
	"files/files belong to the default user, with its permissions",
	"files/Watch yields synced, then changes",
	"sub/the work directory of a stopped sandbox is confined too",
	"restart/a process survives a restart, and its output can be read from the first byte",
	"dial/Dial connects to a port inside, both ways",
	"dial/a connection can be closed for writing and read to its end",
	"dial/Dial does not reach the host's port of the same number",
	"dial/connections end when the sandbox is removed",
}

// guestGroups are the groups of the promises that the guest keeps in every sandbox.
var guestGroups = []string{"exec", "output", "time", "tree", "tty", "files", "sub", "dial"}

// WireOnly reduces the given groups to the promises that can break between a caller and a sandbox. Without
// arguments it reduces exec, output, time, tree, tty, files, sub and dial, which leaves some twenty
// promises. The suite neither runs nor lists the others. Use WireOnly for a provider whose sandboxes run
// the same guest as those of another provider, which keeps all promises. A group without such promises
// fails the run.
func WireOnly(groups ...string) Option {
	if len(groups) == 0 {
		groups = guestGroups
	}
	return func(c *config) { c.wire = append(c.wire, groups...) }
}

// onWire reports whether wirePromises has the promise.
func onWire(group, promise string) bool { return slices.Contains(wirePromises, group+"/"+promise) }

// groupOnWire reports whether wirePromises has a promise of the group.
func groupOnWire(group string) bool {
	return slices.ContainsFunc(wirePromises, func(name string) bool { return strings.HasPrefix(name, group+"/") })
}
