//go:build linux && (amd64 || arm64)

package seccomp

import (
	"slices"

	"golang.org/x/sys/unix"
)

// A rule decides about a system call by the low 32 bits of one argument. The kernel ignores the high bits of these
// arguments, so the filter must ignore them, too.
type rule struct {
	argument uint32   // index
	compare  uint16   // unix.BPF_JEQ: the argument is one of values; unix.BPF_JSET: it has a bit of one of values
	values   []uint32 // empty: the answer is other, whatever the arguments
	match    uint32   // the answer if compare holds
	other    uint32   // the answer if it does not
}

// canAllow reports whether the rule allows any call.
func (r *rule) canAllow() bool {
	return r.other == unix.SECCOMP_RET_ALLOW || len(r.values) > 0 && r.match == unix.SECCOMP_RET_ALLOW
}

// The answers of the filter, beside unix.SECCOMP_RET_ALLOW.
const (
	refused      = unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)
	absent       = unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)
	absentFamily = unix.SECCOMP_RET_ERRNO | uint32(unix.EAFNOSUPPORT)
)

// newNamespaces are the flags of clone for new namespaces. CLONE_NEWTIME is none of them: clone reads its bit as a part
// of the number of a signal.
const newNamespaces = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET

// The rules of the groups. No code changes them.
var (
	allow  = &rule{other: unix.SECCOMP_RET_ALLOW}
	refuse = &rule{other: refused}
	hide   = &rule{other: absent} // as if the kernel did not have the call
	// refuseNamespaces reads the flags of clone.
	refuseNamespaces = &rule{argument: 0, compare: unix.BPF_JSET, values: []uint32{newNamespaces}, match: refused, other: unix.SECCOMP_RET_ALLOW}
	// refuseTyping reads the request of ioctl.
	refuseTyping = &rule{argument: 1, compare: unix.BPF_JEQ, values: []uint32{unix.TIOCSTI, unix.TIOCLINUX}, match: refused, other: unix.SECCOMP_RET_ALLOW}
	// limitPersonality allows PER_LINUX and PER_LINUX32, each also with UNAME26, and the query of the present value.
	limitPersonality = &rule{argument: 0, compare: unix.BPF_JEQ, values: []uint32{0, 0x8, 0x20000, 0x20008, 0xffffffff}, match: unix.SECCOMP_RET_ALLOW, other: refused}
	// limitFamilies reads the family of socket and socketpair.
	limitFamilies = &rule{argument: 0, compare: unix.BPF_JEQ, values: []uint32{unix.AF_UNIX, unix.AF_INET, unix.AF_INET6, unix.AF_NETLINK}, match: unix.SECCOMP_RET_ALLOW, other: absentFamily}
)

// A call is a system call of one architecture.
type call struct {
	name   string
	number uint32
}

// A group is a set of calls with the same rules, for one reason.
type group struct {
	name   string
	reason string
	rule   *rule
	nested *rule // the rule with Options.Nested
	calls  []call
}

// numbers is a range of numbers of system calls.
type numbers struct {
	first, last uint32
}

// An architecture is a convention of system calls.
type architecture struct {
	audit      uint32 // the kernel's number of the convention
	groups     []group
	newest     uint32    // the highest number of a call that the groups have
	unassigned []numbers // ranges below newest without calls
}

// hostArchitecture returns the convention of this program.
func hostArchitecture() *architecture {
	a := &architecture{audit: hostAudit, newest: newestCall, unassigned: unassigned}
	for _, g := range slices.Concat(allowedGroups, refusedGroups) {
		g.calls = slices.Concat(g.calls, ownCalls[g.name])
		a.groups = append(a.groups, g)
	}
	return a
}

// A span is a range of numbers with the same rule. It ends before the first number of the next span, or never.
type span struct {
	first uint32
	rule  *rule
}

// layOutSpans returns the rules of all numbers, the first span from 0. The last one hides all that is newer than the
// groups, and with it the x32 convention of amd64, whose numbers have bit 30. A number without a call is hidden, too:
// a future kernel may use it.
func (a *architecture) layOutSpans(o Options) []span {
	rules := slices.Repeat([]*rule{refuse}, int(a.newest)+1)
	for _, r := range a.unassigned {
		for n := r.first; n <= r.last; n++ {
			rules[n] = hide
		}
	}
	for _, g := range a.groups {
		for _, c := range g.calls {
			if rules[c.number] = g.rule; o.Nested {
				rules[c.number] = g.nested
			}
		}
	}
	spans := []span{{0, rules[0]}}
	for n, r := range append(rules, hide) {
		if r != spans[len(spans)-1].rule {
			spans = append(spans, span{uint32(n), r})
		}
	}
	return spans
}
