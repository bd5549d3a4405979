//go:build linux && (amd64 || arm64)

package seccomp

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"math"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// maxSteps is the most instructions that the filter may execute for a call.
const maxSteps = 20

// judgeCall returns the answer that the documentation of this package promises for a call. It reads nothing but the
// names of the groups and the condition on which their calls are allowed.
func judgeCall(groups []Group, name string, o Options, args [6]uint64) uint32 {
	i := slices.IndexFunc(groups, func(g Group) bool { return slices.Contains(g.Calls, name) })
	low := [2]uint32{uint32(args[0]), uint32(args[1])}
	switch {
	case name == "clone3" && !o.Nested:
		return absent
	case i < 0, groups[i].Access == Refused, groups[i].Access == NestedOnly && !o.Nested:
		return refused
	case name == "clone" && !o.Nested && low[0]&0x7e020000 != 0:
		return refused
	case name == "ioctl" && (low[1] == 0x5412 || low[1] == 0x541c):
		return refused
	case name == "personality" && !slices.Contains([]uint32{0, 8, 0x20000, 0x20008, 0xffffffff}, low[0]):
		return refused
	case (name == "socket" || name == "socketpair") && !slices.Contains([]uint32{1, 2, 10, 16}, low[0]):
		return absentFamily
	}
	return unix.SECCOMP_RET_ALLOW
}

// interestingArguments are values of the first two arguments, at the edges of the rules.
func interestingArguments() [][6]uint64 {
	values := []uint64{0, 1, 2, 3, 8, 10, 16, 17, 38, 40, 0x11, 0x80, 0x5411, 0x5412, 0x5413, 0x541c, 0x20000, 0x20008, 0x40000, 0x3d0f00, 0x1200011, 0x02000000, 0x04000000, 0x08000000,
		0x10000000, 0x20000000, 0x40000000, 0x80000000, 0xffffffff}
	var out [][6]uint64
	for _, v := range values {
		for _, high := range []uint64{0, 1 << 32, 0xffffffff << 32} {
			out = append(out, [6]uint64{v | high, v | high, math.MaxUint64, v, v, v})
		}
	}
	return append(out, [6]uint64{0, 0x5412}, [6]uint64{0x5412, 0}, [6]uint64{0, 0x10000000})
}

func TestProgram(t *testing.T) {
	groups, names, a := Groups(), Names(), hostArchitecture()
	for _, o := range []Options{{}, {Nested: true}} {
		filter := Program(o)
		longest := 0
		if !reflect.DeepEqual(filter, Program(o)) {
			t.Errorf("%+v: two calls of Program differ", o)
		}
		for number := range uint32(600) {
			name := names[number]
			for _, args := range interestingArguments() {
				want := judgeCall(groups, name, o, args)
				if name == "" {
					want = absent // unassigned, or newer than the list
				}
				got := runFilter(t, filter, packCall(a.audit, number, args))
				if longest = max(longest, got.steps); got.answer != want {
					t.Errorf("%+v: call %d %q with %#x: answer %#x, want %#x", o, number, name, args[:2], got.answer, want)
				}
				if ruled := slices.Contains([]string{"clone", "ioctl", "personality", "socket", "socketpair"}, name); got.argument && !ruled {
					t.Errorf("%+v: the filter reads an argument of %s; the kernel could run no program without it", o, name)
				}
			}
		}
		if t.Logf("%+v: %d instructions, of which a call executes up to %d", o, len(filter), longest); longest > maxSteps {
			t.Errorf("%+v: a call executes %d instructions, want up to %d", o, longest, maxSteps)
		}
	}
}

// Calls by other conventions, such as those of 32-bit programs, are absent, whatever their numbers. So are those of x32.
func TestConventions(t *testing.T) {
	filter := Program(Options{Nested: true})
	const x32 = 0x40000000
	for number := range uint32(600) {
		for _, audit := range []uint32{unix.AUDIT_ARCH_X86_64, unix.AUDIT_ARCH_AARCH64, unix.AUDIT_ARCH_I386, unix.AUDIT_ARCH_ARM, unix.AUDIT_ARCH_RISCV64, 0, math.MaxUint32} {
			if audit == hostAudit {
				continue
			}
			if got := runFilter(t, filter, packCall(audit, number, [6]uint64{})); got.answer != absent {
				t.Errorf("convention %#x, call %d: answer %#x", audit, number, got.answer)
			}
		}
		for _, bits := range []uint32{x32, 1 << 31, x32 | 1<<31} {
			if got := runFilter(t, filter, packCall(hostAudit, number|bits, [6]uint64{})); got.answer != absent {
				t.Errorf("call %#x: answer %#x", number|bits, got.answer)
			}
		}
	}
}

// Each number up to the newest is judged once: it is in a group, or a range has it as unassigned.
func TestEachCallIsJudged(t *testing.T) {
	a, seen := hostArchitecture(), map[uint32]string{}
	judge := func(number uint32, name string) {
		if before, ok := seen[number]; ok {
			t.Errorf("call %d is both %s and %s", number, before, name)
		}
		seen[number] = name
	}
	names := map[string]bool{}
	for _, g := range a.groups {
		if names[g.name] || g.name != strings.ToLower(g.name) || strings.Contains(g.name, " ") {
			t.Errorf("group %q: the name is not one word of its own", g.name)
		}
		names[g.name] = true
		for _, c := range g.calls {
			judge(c.number, c.name)
		}
	}
	for name := range ownCalls {
		if !names[name] {
			t.Errorf("ownCalls has group %q, which does not exist", name)
		}
	}
	for _, r := range a.unassigned {
		for n := r.first; n <= r.last; n++ {
			judge(n, "unassigned")
		}
	}
	for n := range a.newest + 1 {
		if seen[n] == "" {
			t.Errorf("no group has call %d", n)
		}
	}
	if len(seen) != int(a.newest)+1 {
		t.Errorf("%d calls are judged, want %d", len(seen), a.newest+1)
	}
}

func TestGroups(t *testing.T) {
	access := map[string]Access{}
	for _, g := range Groups() {
		if !strings.HasSuffix(g.Reason, ".") || len(g.Calls) == 0 {
			t.Errorf("group %+v lacks a sentence, or calls", g)
		}
		for _, name := range g.Calls {
			access[name] = g.Access
		}
	}
	for want, names := range map[Access]string{
		Allowed: "openat ioctl clone execve ptrace process_vm_readv process_vm_writev pidfd_open pidfd_send_signal seccomp landlock_restrict_self socket personality futex_wait cachestat fchmodat2 " +
			"mseal statmount listmount getxattrat setxattrat file_getattr rseq",
		NestedOnly: "chroot clone3 unshare setns mount umount2 pivot_root open_tree open_tree_attr move_mount mount_setattr fsopen fsconfig fsmount fspick sethostname setdomainname",
		Refused: "keyctl add_key request_key bpf userfaultfd perf_event_open io_uring_setup io_uring_enter io_uring_register kexec_load kexec_file_load init_module finit_module reboot swapon " +
			"open_by_handle_at memfd_secret pidfd_getfd syslog acct quotactl settimeofday clock_settime fanotify_init mbind move_pages listns",
	} {
		for name := range strings.FieldsSeq(names) {
			if got, ok := access[name]; !ok || got != want {
				t.Errorf("%s: access %d, want %d", name, got, want)
			}
		}
	}
}

// The name of each call is the one of its constant, in the tables of all architectures.
func TestNamesMatchConstants(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	checked := map[string]int{}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			name, constant, ok := splitCall(n)
			if ok {
				checked[file]++
			}
			if want := "SYS_" + strings.ToUpper(name); ok && constant != want {
				t.Errorf("%s: %q has the number of %s, want %s", file, name, constant, want)
			}
			return true
		})
	}
	for _, file := range []string{"calls.go", "calls_amd64.go", "refusals.go"} {
		if checked[file] < 40 {
			t.Errorf("the test found only %d calls in %s", checked[file], file)
		}
	}
}

// splitCall returns the parts of a literal such as {"read", unix.SYS_READ}.
func splitCall(n ast.Node) (name, constant string, ok bool) {
	lit, ok := n.(*ast.CompositeLit)
	if !ok || len(lit.Elts) != 2 {
		return "", "", false
	}
	text, isText := lit.Elts[0].(*ast.BasicLit)
	number, isNumber := lit.Elts[1].(*ast.SelectorExpr)
	if !isText || !isNumber || text.Kind != token.STRING {
		return "", "", false
	}
	name, err := strconv.Unquote(text.Value)
	return name, number.Sel.Name, err == nil
}

func BenchmarkProgram(b *testing.B) {
	for b.Loop() {
		Program(Options{})
	}
}

func ExampleGroups() {
	for _, g := range Groups() {
		if g.Access == NestedOnly {
			fmt.Println(g.Name)
		}
	}
	// Output:
	// clone3
	// namespaces
}
