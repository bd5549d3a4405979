//go:build linux && (amd64 || arm64)

// Package seccomp builds the filter of system calls for the programs of a sandbox.
//
// The filter has a list of allowed calls, which starts from the default profile of the Open Container Initiative for a
// container without additional capabilities. calls.go has the reasons for the allowed calls, refusals.go for the others.
// The answers are
//
//   - EPERM for a refused call,
//   - ENOSYS for clone3, for a number that had no call when the list was made, and for each call by another convention than
//     that of 64-bit programs. For libraries this is an older kernel, and they make the call that such a kernel has,
//   - EAFNOSUPPORT for a socket of a family that is not in the list.
//
// The filter reads an argument only for calls whose rules depend on one. So the kernel, since Linux 5.11, finds the calls
// that it always allows once, when a program gets the filter, and later runs no filter for them.
package seccomp

import "golang.org/x/sys/unix"

// Options change the list. The zero value refuses new namespaces and mounts.
type Options struct {
	// Nested allows new namespaces and mounts, for programs that make sandboxes themselves, such as bubblewrap and
	// container engines. The kernel still limits them to the capabilities that the programs have.
	Nested bool
}

// Program returns the filter for runtime.GOARCH. It returns the same instructions for the same options; the caller
// owns them.
func Program(o Options) []unix.SockFilter {
	a := hostArchitecture()
	return assembleFilter(a.audit, a.layOutSpans(o))
}

// An Access is the condition on which the filter allows a call.
type Access int

const (
	Allowed    Access = iota // always, though a rule may refuse some arguments
	NestedOnly               // with Options.Nested
	Refused                  // never
)

// A Group is a set of system calls that the filter treats alike, for one reason.
type Group struct {
	Name   string // one word
	Access Access
	Reason string   // sentences; they name the arguments that a rule refuses
	Calls  []string // as the manual of Linux names them, those that only amd64 has at the end
}

// Groups returns all system calls of runtime.GOARCH that the filter knows. Each call is in one group.
func Groups() []Group {
	var out []Group
	for _, g := range hostArchitecture().groups {
		group := Group{Name: g.name, Access: Refused, Reason: g.reason}
		switch {
		case g.rule.canAllow():
			group.Access = Allowed
		case g.nested.canAllow():
			group.Access = NestedOnly
		}
		for _, c := range g.calls {
			group.Calls = append(group.Calls, c.name)
		}
		out = append(out, group)
	}
	return out
}

// Names returns the names of the calls in Groups by their numbers.
func Names() map[uint32]string {
	names := map[uint32]string{}
	for _, g := range hostArchitecture().groups {
		for _, c := range g.calls {
			names[c.number] = c.name
		}
	}
	return names
}
