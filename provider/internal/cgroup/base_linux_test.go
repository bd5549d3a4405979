package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// A fakeKernel is a hierarchy of v2 that obeys the rules of the kernel about processes and controllers, or one of v1.
type fakeKernel struct {
	Hierarchy
	t *testing.T
}

// newKernel returns a hierarchy with these files, for a process that is in the group own and may write in the directory owned.
func newKernel(t *testing.T, own, owned string, files map[string]string) *fakeKernel {
	t.Helper()
	k := &fakeKernel{fakeHierarchy(t, files), t}
	k.write, k.delegated = k.writeFile, func(dir string) bool { return pathExists(filepath.Join(dir, "delegated")) }
	k.writable = func(file string) bool {
		group := strings.TrimPrefix(file, k.root)
		if !k.v2 { // it is in the directory of a controller
			_, group, _ = strings.Cut(group[1:], "/")
		}
		group = path.Join("/", group)
		return pathExists(file) && (owned == "/" || group == owned || strings.HasPrefix(group, owned+"/"))
	}
	k.own = func() (map[string]string, error) {
		groups := map[string]string{"": own}
		for _, controller := range slices.Concat(v1Controllers, insideControllers) {
			groups[controller] = own
		}
		return groups, nil
	}
	return k
}

// writeFile does what the kernel of v2 does: a write to cgroup.procs moves a process, and a controller is enabled only in a group that
// has no processes itself and whose parent has it.
func (k *fakeKernel) writeFile(file, value string) error {
	refuse := func(err error) error { return &fs.PathError{Op: "write", Path: file, Err: err} }
	dir, name := filepath.Split(file)
	switch {
	case !k.v2:
		return writeFile(file, value)
	case name == "cgroup.procs":
		if len(k.list(filepath.Join(dir, "cgroup.subtree_control"))) > 0 {
			return refuse(unix.EBUSY)
		}
		for _, procs := range k.glob("cgroup.procs") {
			left := slices.DeleteFunc(k.list(procs), func(pid string) bool { return pid == value })
			k.setList(procs, left)
		}
		k.setList(file, append(k.list(file), value))
		return nil
	case name == "cgroup.subtree_control":
		switch controller := strings.TrimPrefix(value, "+"); {
		case len(k.list(filepath.Join(dir, "cgroup.procs"))) > 0:
			return refuse(unix.EBUSY)
		case !slices.Contains(k.list(filepath.Join(dir, "cgroup.controllers")), controller):
			return refuse(unix.ENOENT)
		default:
			k.setList(file, append(k.list(file), controller))
			return nil
		}
	}
	return writeFile(file, value)
}

// glob returns the files with that name.
func (k *fakeKernel) glob(name string) (files []string) {
	_ = filepath.WalkDir(k.root, func(path string, _ fs.DirEntry, _ error) error {
		if filepath.Base(path) == name {
			files = append(files, path)
		}
		return nil
	})
	return files
}

// list returns the words in a file; none if it does not exist.
func (k *fakeKernel) list(file string) []string {
	data, _ := os.ReadFile(file)
	return strings.Fields(string(data))
}

func (k *fakeKernel) setList(file string, words []string) {
	k.t.Helper()
	if err := os.WriteFile(file, []byte(strings.Join(words, " ")), 0o644); err != nil {
		k.t.Fatal(err)
	}
}

// v2Groups returns the files of the group of v2 and of those above it, which all have these controllers. The group has processes.
func v2Groups(controllers, group string, pids ...int) map[string]string {
	files := map[string]string{}
	for dir := group; ; dir = path.Dir(dir) {
		procs, enabled := "", controllers
		if dir == group {
			procs, enabled = strings.Trim(fmt.Sprint(pids), "[]"), ""
		}
		files[path.Join(dir, "cgroup.controllers")], files[path.Join(dir, "cgroup.procs")], files[path.Join(dir, "cgroup.subtree_control")] = controllers, procs, enabled
		if dir == "/" {
			return files
		}
	}
}

func TestFindBase(t *testing.T) {
	child := exec.Command("sleep", "60")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = child.Process.Kill()
		_ = child.Wait()
	}()
	const (
		all     = "cpu memory pids"
		slice   = "/user.slice/user-1000.slice"
		manager = slice + "/user@1000.service"
		scope   = manager + "/app.slice/run-1.scope"
		service = manager + "/app.slice/atoll.service"
	)
	self, shell := os.Getpid(), os.Getppid()
	full := func(path string) Base { return Base{path, true, true, true, true} }
	for name, test := range map[string]struct {
		owned, own  string
		controllers string
		pids        []int // in own
		delegated   []string
		want        Base
		moved       []int // to the leaf of the base
	}{
		"root":                           {"/", "/", all, nil, nil, full("/"), nil},
		"root without cpu":               {"/", "/", "memory pids", nil, nil, Base{"/", true, false, true, true}, nil},
		"root without controllers":       {"/", "/", "", nil, nil, Base{Path: "/", Freeze: true}, nil},
		"container":                      {"/", "/", all, []int{self}, nil, Base{Path: "/", Freeze: true}, nil},
		"read-only":                      {"/nothing", "/", all, nil, nil, Base{}, nil},
		"outside of a namespace":         {"/nothing", "/../../other", all, nil, nil, Base{}, nil},
		"session":                        {manager, slice + "/session-2.scope", all, []int{shell, self}, []string{manager}, Base{}, nil},
		"manager":                        {manager, manager, all, []int{self}, []string{manager}, Base{}, nil},
		"scope":                          {manager, scope, all, []int{self}, []string{manager, scope}, full(scope), []int{self}},
		"scope with a child":             {manager, scope, all, []int{child.Process.Pid, self}, []string{manager, scope}, full(scope), []int{child.Process.Pid, self}},
		"scope with a shell":             {manager, scope, all, []int{shell, self}, []string{manager, scope}, Base{}, nil},
		"scope that is not delegated":    {manager, scope, all, []int{self}, []string{manager}, Base{}, nil},
		"scope of an old systemd":        {manager, scope, all, []int{self}, nil, full(scope), []int{self}},
		"scope without cpu":              {manager, scope, "memory pids", []int{self}, []string{manager, scope}, Base{scope, true, false, true, true}, []int{self}},
		"scope without controllers":      {manager, scope, "io", []int{self}, []string{manager, scope}, Base{}, nil},
		"scope that moved before":        {manager, scope + "/" + leafName, all, []int{self}, []string{manager, scope}, full(scope), nil},
		"service with a subgroup":        {manager, service + "/server", all, []int{self}, []string{manager, service}, full(service), nil},
		"service without a subgroup":     {manager, service, all, []int{self}, []string{manager, service}, Base{}, nil},
		"service of root":                {"/system.slice/atoll.service", "/system.slice/atoll.service/server", all, []int{self}, nil, full("/system.slice/atoll.service"), nil},
		"without systemd":                {"/alice", "/alice/shell", all, []int{shell, self}, nil, full("/alice"), nil},
		"without systemd, alone":         {"/alice", "/alice", all, []int{self}, nil, full("/alice"), []int{self}},
		"without systemd, with a shell":  {"/alice", "/alice", all, []int{shell, self}, nil, Base{}, nil},
		"without systemd, of all others": {"/nothing", "/alice", all, []int{self}, nil, Base{}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			files := v2Groups(test.controllers, test.own, test.pids...)
			for _, dir := range test.delegated {
				files[path.Join(dir, "delegated")] = ""
			}
			k := newKernel(t, test.own, test.owned, files)
			if got := k.FindBase(); got != test.want {
				t.Fatalf("FindBase() = %+v, want %+v", got, test.want)
			}
			if got := k.list(filepath.Join(k.root, test.want.Path, leafName, "cgroup.procs")); test.moved != nil && !slices.Equal(got, strings.Fields(strings.Trim(fmt.Sprint(test.moved), "[]"))) {
				t.Errorf("moved %q, want %v", got, test.moved)
			}
			if test.moved == nil && test.want.Path != test.own {
				if got := k.list(filepath.Join(k.root, test.own, "cgroup.procs")); len(got) != len(test.pids) {
					t.Errorf("only %q remain of %v", got, test.pids)
				}
			}
		})
	}
}

// On v1 the base is in each hierarchy whose group has the same path. A user owns some of them.
func TestFindBaseV1(t *testing.T) {
	group := func(dir string, controllers ...string) map[string]string {
		files := map[string]string{}
		for _, name := range controllers {
			for _, file := range []string{"cgroup.procs", "tasks"} {
				files[path.Join(name, dir, file)] = ""
			}
		}
		return files
	}
	for name, test := range map[string]struct {
		owned, own  string
		controllers []string
		want        Base
	}{
		"root":              {"/", "/", []string{"memory", "cpu", "cpuacct", "pids", "freezer"}, Base{"/", true, true, true, true}},
		"root alone":        {"/", "/", []string{"memory", "cpu"}, Base{"/", true, true, false, false}},
		"root of a shell":   {"/", "/shell", []string{"memory", "cpu", "cpuacct", "pids", "freezer"}, Base{"/", true, true, true, true}},
		"user":              {"/alice", "/alice", []string{"memory", "cpu", "cpuacct", "pids", "freezer"}, Base{"/alice", true, true, true, true}},
		"user, memory":      {"/alice", "/alice", []string{"memory"}, Base{"/alice", true, false, false, false}},
		"user, freezer":     {"/alice", "/alice", []string{"freezer"}, Base{"/alice", false, false, false, true}},
		"user, below":       {"/alice", "/alice/shell", []string{"memory", "freezer"}, Base{"/alice/shell", true, false, false, true}},
		"user in the root":  {"/alice", "/", []string{"memory", "freezer"}, Base{}},
		"another":           {"/alice", "/bob", []string{"memory", "freezer"}, Base{}},
		"nothing":           {"/", "/", nil, Base{}},
		"not a namespace's": {"/nothing", "/../alice", []string{"memory"}, Base{}},
	} {
		t.Run(name, func(t *testing.T) {
			k := newKernel(t, test.own, test.owned, group(test.own, test.controllers...))
			if got := k.FindBase(); got != test.want {
				t.Errorf("FindBase() = %+v, want %+v", got, test.want)
			}
		})
	}
}

// A user's groups are in the base, and a process that leaves them goes no further than to the leaf beside them.
func TestGroupOfUser(t *testing.T) {
	const scope = "/user.slice/user-1000.slice/user@1000.service/app.slice/run-1.scope"
	self := strconv.Itoa(os.Getpid())
	k := newKernel(t, scope, scope, v2Groups("cpu memory pids", scope, os.Getpid()))
	g := k.Group(path.Join(k.FindBase().Path, "box"))
	if err := g.Make(Limits{Memory: 1 << 30, CPUs: 1}); err != nil {
		t.Fatal(err)
	}
	if got := readFile(t, k.Hierarchy, scope+"/box/memory.max"); got != "1073741824" {
		t.Errorf("memory.max = %q", got)
	}
	if err := g.Join(os.Getpid()); err != nil {
		t.Fatal(err)
	}
	leaf := filepath.Join(k.root, scope, leafName, "cgroup.procs")
	if got := k.list(leaf); len(got) > 0 {
		t.Errorf("%q are in the leaf", got)
	}
	if err := g.Leave(); err != nil {
		t.Fatal(err)
	}
	if got := k.list(leaf); !slices.Equal(got, []string{self}) {
		t.Errorf("%q are in the leaf, want %s", got, self)
	}
}

// On v1, where the controller is that the user has.
func TestGroupOfUserV1(t *testing.T) {
	k := newKernel(t, "/alice", "/alice", map[string]string{"memory/alice/cgroup.procs": "", "cpu/alice/other": "", "cpu/cgroup.procs": ""})
	g := k.Group(path.Join(k.FindBase().Path, "box"))
	if err := g.Make(Limits{Memory: 1 << 30}); err != nil {
		t.Fatal(err)
	}
	if got := readFile(t, k.Hierarchy, "memory/alice/box/memory.limit_in_bytes"); got != "1073741824" {
		t.Errorf("memory.limit_in_bytes = %q", got)
	}
	if err := g.Leave(); err != nil {
		t.Fatal(err)
	}
	if got := readFile(t, k.Hierarchy, "memory/alice/cgroup.procs"); got != strconv.Itoa(os.Getpid()) {
		t.Errorf("%q left to the base", got)
	}
	if _, _, ok := g.Usage(); ok {
		t.Error("without cpuacct the CPU time is known")
	}
}

// baseVar has the group of TestRealBase, for the process that runs in it as an ordinary user.
const baseVar = "ATOLL_TEST_BASE"

// TestRealBase limits a process on this machine's own cgroups of v2, as an ordinary user who owns a group.
func TestRealBase(t *testing.T) {
	if base := os.Getenv(baseVar); base != "" {
		checkBase(t, base)
		return
	}
	h := Open(Root)
	if b := h.FindBase(); !h.v2 || b.Path != "/" || !b.Memory || os.Geteuid() != 0 {
		t.Skip("needs root, and cgroup v2 with the memory controller")
	}
	const user = 54321
	base := fmt.Sprintf("/atoll-test-base-%d", os.Getpid())
	dir := filepath.Join(Root, base)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = os.Remove(filepath.Join(dir, leafName)) // the last process has ended in it
		if err := removeDir(dir); err != nil {
			t.Error(err)
		}
	})
	for _, file := range []string{"", "cgroup.procs", "cgroup.subtree_control"} {
		if err := os.Chown(filepath.Join(dir, file), user, user); err != nil {
			t.Fatal(err)
		}
	}
	program := filepath.Join(t.TempDir(), "program")
	data, err := os.ReadFile("/proc/self/exe")
	if err == nil {
		err = os.WriteFile(program, data, 0o755)
	}
	for path := filepath.Dir(program); err == nil && path != os.TempDir(); path = filepath.Dir(path) {
		err = os.Chmod(path, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	group, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer group.Close()
	cmd := exec.Command(program, "-test.run=^TestRealBase$", "-test.v")
	cmd.Env, cmd.Dir = append(os.Environ(), baseVar+"="+base), "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(group.Fd()), Credential: &syscall.Credential{Uid: user, Gid: user}}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("as uid %d: %v\n%s", user, err, out)
	}
}

// checkBase checks that this process, an ordinary user's, finds its base, and limits and freezes a process in a group there.
func checkBase(t *testing.T, base string) {
	h := Open(Root)
	for range 2 { // the second time it is in the leaf
		if b := h.FindBase(); b.Path != base || !b.Memory || !b.Freeze {
			t.Fatalf("FindBase() = %+v, want %s with memory", b, base)
		}
	}
	g := h.Group(path.Join(base, "box"))
	if err := g.Make(Limits{Memory: 64 << 20}); err != nil {
		t.Fatal(err)
	}
	i, err := g.MakeInside(10)
	if err != nil {
		t.Fatal(err)
	}
	kill, _ := startInside(t, i)
	if err := i.Freeze(t.Context()); err != nil {
		t.Error(err)
	}
	if got := readNumber(g.filePath("", "memory.max")); got != 64<<20 {
		t.Errorf("memory.max = %d", got)
	}
	kill()
	if err := errors.Join(g.Join(os.Getpid()), g.Leave()); err != nil {
		t.Fatal(err)
	}
	if err := g.Remove(); err != nil {
		t.Error(err)
	}
}
