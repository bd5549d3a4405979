package providertest

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// needSharedKernel requires that sandboxes share the host's kernel. With a kernel of its own, root
// inside may do there what it likes.
func needSharedKernel(i atoll.Info, _ *config) string {
	if i.Isolation == atoll.IsolationContainer {
		return ""
	}
	return i.Name + " does not share the host's kernel with its sandboxes"
}

// In these promises, a hostile program runs as root and tries to get out.
var escapePromises = []promise{
	{"no path leads to a file of the host", []need{needIsolation}, func(t *testing.T, h *harness) {
		in := h.newAttacker(t, h.plainSandbox(t))
		in.checkAttackFails(t, "files", fileHandle(in.secret.file))
	}},
	{"root inside can open neither devices nor memory of the host", []need{needIsolation, needSharedKernel}, func(t *testing.T, h *harness) {
		h.newAttacker(t, h.plainSandbox(t)).checkAttackFails(t, "devices", listHostDevices(t)...)
	}},
	{"root inside has no privileges over the host's kernel", []need{needIsolation, needSharedKernel}, func(t *testing.T, h *harness) {
		in := h.newAttacker(t, h.plainSandbox(t))
		in.checkAttackFails(t, "kernel")
		in.checkAttackFails(t, "spaces")
	}},
	{"neither io_uring nor an unusual socket bypasses the isolation", []need{needIsolation, needSharedKernel}, func(t *testing.T, h *harness) {
		h.newAttacker(t, h.plainSandbox(t)).checkAttackFails(t, "doors")
	}},
	{"settings of the host's kernel cannot be written", []need{needIsolation, needSharedKernel}, func(t *testing.T, h *harness) {
		h.newAttacker(t, h.plainSandbox(t)).checkAttackFails(t, "knobs")
	}},
	{"no set-user-ID program changes the user", []need{needIsolation, needUsers}, func(t *testing.T, h *harness) {
		in := h.newAttacker(t, h.createSandbox(t, atoll.Spec{User: "root"}))
		for _, dir := range []string{"/tmp", "/work"} {
			setuid := dir + "/hostile-setuid"
			h.runForOutput(t, in.sb, programCommand("cp", in.path, setuid))
			h.runForOutput(t, in.sb, programCommand("chmod", "6755", setuid))
			cmd := in.attackCommand("whoami")
			cmd.Args[0], cmd.User = setuid, "1234:2345"
			in.checkAttackOutput(t, h.runCommand(t, in.sb, cmd))
		}
	}},
	{"root inside leaves no set-user-ID program and no device in a directory of the host", []need{needIsolation, needUsers, needBind}, func(t *testing.T, h *harness) {
		dir := h.newBindDir(t)
		sb := h.createSandbox(t, atoll.Spec{User: "root", Mounts: []atoll.Mount{{Type: atoll.MountBind, Source: dir, Target: "/data"}}})
		for _, mode := range []string{"4755", "2755", "6711", "u+s", "g+s"} {
			h.runForOutput(t, sb, programCommand("cp", "/data/given", "/data/"+mode))
			h.runForOutput(t, sb, programCommand("chmod", "0755", "/data/"+mode))
			_ = h.runForCode(t, sb, programCommand("chmod", mode, "/data/"+mode)) // an engine may refuse it, or leave the mode as it was
		}
		for name, args := range map[string][]string{"null": {"c", "1", "3"}, "disk": {"b", "7", "0"}} {
			if h.runForCode(t, sb, programCommand(append([]string{"mknod", "/data/" + name}, args...)...)) == 0 {
				t.Errorf("mknod made the device %s", name)
			}
		}
		h.newAttacker(t, sb).checkAttackFails(t, "power", "/data")
		checkNoPower(t, dir)
	}},
	{"signals and traces reach no process outside", []need{needIsolation}, attackProcesses},
	{"sockets of the host cannot be reached from any network", []need{needIsolation}, func(t *testing.T, h *harness) {
		for _, network := range h.listNetworks() {
			t.Run(string(network.Mode), func(t *testing.T) {
				in := h.newAttacker(t, h.createSandbox(t, atoll.Spec{Network: network}))
				in.checkAttackFails(t, "sockets", append(listenOnHostSockets(t, in.secret), metadataAddresses...)...)
			})
		}
	}},
	{"links that change during file calls do not lead to the host", []need{needIsolation, needFiles}, func(t *testing.T, h *harness) {
		in := h.newAttacker(t, h.plainSandbox(t))
		for _, dir := range []string{"/work", "/tmp"} {
			victim := in.secret.dir
			in.startAttack(t, "flip", dir+"/dir", victim, strings.Repeat("../", 20)+victim, "/proc/self/root"+victim, "/proc/1/root"+victim, "/proc/1/cwd")
			h.raceFileCalls(t, in.sb, dir+"/dir", in.secret.text)
			in.checkAttacksRun(t)
			in.secret.checkUntouched(t)
		}
	}},
	{"links that change during file calls do not lead a user to root's files", []need{needIsolation, needFiles, needUsers}, func(t *testing.T, h *harness) {
		in := h.newAttacker(t, h.createSandbox(t, atoll.Spec{User: "1234:2345"}))
		asRoot := func(cmd *atoll.Command) *atoll.Command {
			cmd.User = "root"
			return cmd
		}
		const private = "/var/tmp/private"
		h.runForOutput(t, in.sb, asRoot(programCommand("mkdir", "-m", "700", private)))
		h.runForOutput(t, in.sb, asRoot(scriptCommand("store", private+"/secret", in.secret.text)))
		for _, dir := range []string{"/work", "/tmp"} {
			in.startAttack(t, "flip", dir+"/dir", private, "/proc/self/root"+private, "../var/tmp/private")
			h.raceFileCalls(t, in.sb, dir+"/dir", in.secret.text)
			in.checkAttacksRun(t)
		}
		if got := h.runForOutput(t, in.sb, asRoot(programCommand("ls", private))); got != "secret" {
			t.Errorf("root's directory holds %q", got)
		}
		if got := h.runForOutput(t, in.sb, asRoot(programCommand("cat", private+"/secret"))); got != in.secret.text {
			t.Errorf("root's file holds %q", got)
		}
	}},
}

// listHostDevices returns devices that expose the host: its disks, as "b:MAJOR:MINOR", and its memory, the
// log of its kernel and others, as "c:MAJOR:MINOR".
func listHostDevices(t *testing.T) []string {
	t.Helper()
	out := []string{"c:1:1", "c:1:2", "c:1:4", "c:1:11", "c:4:0", "c:4:64", "c:5:1", "c:10:229", "c:10:232", "c:10:235", "c:10:237", "c:10:223", "b:7:0", "b:8:0"}
	table, err := os.ReadFile("/proc/partitions")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(table)) {
		if f := strings.Fields(line); len(f) == 4 && f[0] != "major" {
			out = append(out, "b:"+f[0]+":"+f[1])
		}
	}
	return out
}

// listNetworks returns the networks of the provider that need no option.
func (h *harness) listNetworks() []atoll.Network {
	caps := h.p.Info().Caps
	var all []atoll.Network
	if caps.NetworkNone {
		all = append(all, atoll.Network{Mode: atoll.NetworkNone})
	}
	if caps.NetworkOn {
		all = append(all, atoll.Network{Mode: atoll.NetworkOn})
	}
	if caps.Egress { // the wider a list, the more it has to refuse
		all = append(all, atoll.Network{Mode: atoll.NetworkEgress, Allow: []string{"0.0.0.0/0", "169.254.0.0/16", "*.internal"}})
	}
	return all
}

// metadataAddresses lists addresses and names of the metadata servers of clouds, which give out credentials, as
// pairs of network and address.
var metadataAddresses = []string{
	"tcp", "169.254.169.254:80", "tcp", "169.254.170.2:80", "tcp", "169.254.170.23:80", "tcp", "169.254.169.252:988", "tcp", "[fd00:ec2::254]:80", "tcp", "[fe80::a9fe:a9fe]:80",
	"tcp", "100.100.100.200:80", "tcp", "168.63.129.16:80", "tcp", "168.63.129.16:32526", "tcp", "192.0.0.192:80", "tcp", "[::ffff:169.254.169.254]:80",
	"tcp", "metadata.google.internal:80", "tcp", "0xa9fea9fe:80", "tcp", "2852039166:80",
}

// listenOnHostSockets listens at various addresses of this machine. It returns them as seen from inside, as
// pairs of network and address.
func listenOnHostSockets(t *testing.T, s hostSecret) (pairs []string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "atoll") // a short name
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	name := filepath.Join(dir, "socket")
	for address, seen := range map[string][]string{
		"@" + s.canary: nil,
		name:           {name, "/proc/1/root" + name, "/proc/self/root/" + strings.Repeat("../", 10) + name},
	} {
		l, err := net.Listen("unix", address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		for _, as := range append(seen, address) {
			pairs = append(pairs, "unix", as)
		}
	}
	for _, as := range []string{"/run/docker.sock", "/var/run/docker.sock", "/run/containerd/containerd.sock", "/run/systemd/private", "/run/dbus/system_bus_socket", "@/containerd-shim/default.sock"} {
		pairs = append(pairs, "unix", as)
	}
	for _, ip := range listAddresses(t) {
		pairs = append(pairs, "tcp", listenOn(t, ip).String())
		if ip.Is4() {
			_, port, _ := net.SplitHostPort(pairs[len(pairs)-1])
			pairs = append(pairs, "tcp", "[::ffff:"+ip.String()+"]:"+port, "tcp", "[64:ff9b::"+ip.String()+"]:"+port)
			if ip.IsLoopback() { // the gateway must not forward to it
				pairs = append(pairs, "tcp", "0.0.0.0:"+port, "tcp", "192.0.0.1:"+port, "tcp", "172.17.0.1:"+port, "tcp", "10.0.2.2:"+port, "tcp", "host.docker.internal:"+port)
			}
		}
	}
	return pairs
}

// attackProcesses has a program attack every process that it can name, of the host, of another sandbox
// and of its own.
func attackProcesses(t *testing.T, h *harness) {
	victim := exec.Command("sleep", "1000")
	if err := victim.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = victim.Process.Kill()
		_ = victim.Wait()
	}()
	before := readTraits(t, victim.Process.Pid)
	neighbour := h.plainSandbox(t)
	_, scr := h.startReady(t, neighbour, scriptCommand("drip"))
	in := h.newAttacker(t, h.createSandbox(t, atoll.Spec{}))
	wait, attack := io.Pipe() // the attack may stop the process that reports its beginning
	defer attack.Close()
	in.startAttackWithInput(t, wait, "signals", strconv.Itoa(victim.Process.Pid), strconv.Itoa(os.Getpid()), strconv.Itoa(os.Getppid()))
	_ = attack.Close()
	shown := len(scr.readText())
	time.Sleep(10 * quietTime) // the attack does not report when it has tried all processes
	scr.waitUntil(t, h, "later numbers", func(text string) bool { return len(text) > shown+10 })
	h.runForOutput(t, neighbour, programCommand("echo", "unharmed"))
	if after := readTraits(t, victim.Process.Pid); after != before {
		t.Errorf("the host's process is now %q, was %q", after, before)
	}
	st := h.getStatus(t, in.sb)
	if st.State != atoll.StateRunning && st.State != atoll.StateStopped && (st.State != atoll.StateFailed || st.Reason == "") {
		t.Errorf("the sandbox itself is %s (%q), want it running, stopped, or failed with a reason", st.State, st.Reason)
	}
	runWithin(t, h.longLimit(), "Remove", func() {
		if err := in.sb.Remove(h.newContext(t), atoll.RemoveVolumes()); err != nil {
			t.Errorf("Remove: %v", err)
		}
	})
}

// readTraits describes what other processes can change of a process.
func readTraits(t *testing.T, pid int) string {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	limits, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", pid))
	if err != nil {
		t.Fatal(err)
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:])) // the name before may contain anything
	nice := fields[16]                                                        // see proc_pid_stat(5)
	var out strings.Builder
	for line := range strings.Lines(string(status)) {
		switch f := strings.Fields(line); f[0] {
		case "TracerPid:", "Uid:", "Gid:":
			out.WriteString(strings.Join(f, " ") + ", ")
		case "State:":
			fmt.Fprintf(&out, "stopped or dead: %v, ", strings.ContainsAny(f[1], "TtZX"))
		}
	}
	return fmt.Sprintf("%snice %s, limits %x", &out, nice, sha256.Sum256(limits))
}

// raceFileCalls makes all file calls on dir for a while, during which a program turns dir into a link
// to a directory with text. Some calls must fail, some succeed, and none finds the text.
func (h *harness) raceFileCalls(t *testing.T, sb atoll.Sandbox, dir, text string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(h.newContext(t), h.shortLimit())
	defer cancel()
	var packed bytes.Buffer
	w := tar.NewWriter(&packed)
	for _, name := range []string{"secret", "sub/planted"} {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	f := atoll.Files(sb)
	done, tried := map[string]int{}, 0
	raced := func() bool { return done["Write"] > 0 && done["Read"] < tried }
	for begin := time.Now(); ctx.Err() == nil && !t.Failed() && (time.Since(begin) < 5*quietTime || !raced()); tried++ {
		for what, do := range map[string]func() error{
			"Write":   func() error { return atoll.WriteFile(ctx, sb, dir+"/secret", []byte("overwritten"), 0) },
			"Mkdir":   func() error { return f.Mkdir(ctx, dir+"/planted/deep", 0o755) },
			"Remove":  func() error { return f.Remove(ctx, dir+"/secret", false) },
			"removal": func() error { return f.Remove(ctx, dir+"/planted", true) },
			"Rename":  func() error { return f.Rename(ctx, dir+"/secret", dir+"/moved") },
			"ReadTar": func() error { return f.ReadTar(ctx, dir, bytes.NewReader(packed.Bytes())) },
			"WriteTar": func() error {
				var got bytes.Buffer
				err := f.WriteTar(ctx, dir, &got)
				if bytes.Contains(got.Bytes(), []byte(text)) {
					t.Error("WriteTar packed the secret")
				}
				return err
			},
			"Read": func() error {
				got, err := atoll.ReadFile(ctx, sb, dir+"/secret")
				if bytes.Contains(got, []byte(text)) {
					t.Error("Read found the secret")
				}
				return err
			},
			"List": func() error {
				list, err := f.List(ctx, dir, true)
				for _, info := range list {
					if strings.HasPrefix(info.Name, "canary-") {
						t.Errorf("List shows %s", info.Path)
					}
				}
				return err
			},
		} {
			if do() == nil {
				done[what]++
			}
		}
	}
	t.Logf("of %d tries each, what succeeded: %v", tried, done)
	if !raced() {
		t.Errorf("of %d tries each, what succeeded: %v; want successes and failures of Write and Read", tried, done)
	}
}

// checkNoPower checks that all files below dir are usual ones, which give nobody the rights of another user.
func checkNoPower(t *testing.T, dir string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err == nil && info.Mode()&(fs.ModeSetuid|fs.ModeSetgid|fs.ModeDevice) != 0 {
			t.Errorf("on the host there is %s %s", info.Mode(), path)
		}
		if hasCapabilities(path) {
			t.Errorf("on the host %s has capabilities", path)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}
