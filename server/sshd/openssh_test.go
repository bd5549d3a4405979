package sshd

import (
	"bytes"
	"crypto/ed25519"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

// openSSH needs the programs of OpenSSH, and returns a function that calls one of them.
func openSSH(t *testing.T, r *rig) func(program string, args ...string) *exec.Cmd {
	t.Helper()
	for _, program := range []string{"ssh", "sftp", "scp"} {
		testenv.Need(t, testenv.Program(program, "openssh-client"))
	}
	dir := t.TempDir()
	_, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	if r.signer, err = ssh.NewSignerFromKey(private); err != nil {
		t.Fatal(err)
	}
	writeKey(t, filepath.Join(dir, "id"), private)
	r.authorizeLines(t, r.keyLine(""))
	host, port, err := net.SplitHostPort(r.addr)
	if err != nil {
		t.Fatal(err)
	}
	known := "[" + host + "]:" + port + " " + string(ssh.MarshalAuthorizedKey(r.server.hostKey.PublicKey()))
	if err := os.WriteFile(filepath.Join(dir, "known"), []byte(known), 0o600); err != nil {
		t.Fatal(err)
	}
	return func(program string, args ...string) *exec.Cmd {
		common := []string{
			"-F", "none", "-i", filepath.Join(dir, "id"), "-o", "Port=" + port, "-o", "IdentitiesOnly=yes", "-o", "BatchMode=yes",
			"-o", "UserKnownHostsFile=" + filepath.Join(dir, "known"), "-o", "StrictHostKeyChecking=yes",
		}
		cmd := exec.CommandContext(t.Context(), program, append(common, args...)...)
		cmd.Dir, cmd.WaitDelay = dir, testenv.Scale(10*time.Second)
		cmd.Env = append(os.Environ(), "LC_ALL=C.UTF-8", "SSH_AUTH_SOCK=", "TERM=vt100")
		return cmd
	}
}

// runCommand runs a program of OpenSSH, and returns its output and exit code.
func runCommand(cmd *exec.Cmd) (stdout, stderr string, code int) {
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	_ = cmd.Run() // the code tells the result
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

func TestOpenSSH(t *testing.T) {
	forEachProvider(t, func(t *testing.T, r *rig) {
		call := openSSH(t, r)
		for _, c := range []struct {
			args           []string
			stdin          string
			stdout, stderr string
			code           int
		}{
			{[]string{"web@127.0.0.1", "echo hi; exit 3"}, "", "hi\n", "", 3},
			{[]string{"default.web@127.0.0.1", "cat"}, "some input", "some input", "", 0},
			{[]string{"-o", "SendEnv=LC_*", "web@127.0.0.1", "echo $LC_ALL"}, "", "C.UTF-8\n", "", 0},
			{[]string{"-tt", "web@127.0.0.1", "echo $TERM"}, "", "vt100\r\n", "", 0},
			{[]string{"-tt", "web@127.0.0.1"}, "echo a$TERM; exit 4\n", "avt100\r\n", "", 4},
			{[]string{"-T", "web@127.0.0.1"}, "echo from stdin\n", "from stdin\n", "", 0},
			{[]string{"nobody@127.0.0.1", "true"}, "", "", "atoll: get nobody: sandbox not found", 255},
			{[]string{"-i", "/dev/null", "-o", "IdentityFile=none", "web@127.0.0.1", "kill -TERM $$; sleep 5"}, "", "", "", 255},
		} {
			if r.Info().Name == "mock" && strings.Contains(c.args[len(c.args)-1], "kill") {
				continue // it has no kill
			}
			cmd := call("ssh", c.args...)
			cmd.Stdin = strings.NewReader(c.stdin)
			stdout, stderr, code := runCommand(cmd)
			if !strings.Contains(stdout, c.stdout) || !strings.Contains(stderr, c.stderr) || code != c.code {
				t.Errorf("ssh %q: %q, %q, code %d; want %q, %q, code %d", c.args, stdout, stderr, code, c.stdout, c.stderr, c.code)
			}
		}
	})
}

// If the reader of a pipe has ended, so does the writer.
func TestOpenSSHBrokenPipe(t *testing.T) {
	forEachProvider(t, func(t *testing.T, r *rig) {
		cmd := openSSH(t, r)("ssh", "web@127.0.0.1", "yes")
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		p := r.awaitProcess(t, "yes")
		out.Close()
		_ = cmd.Wait() // it fails
		if exit, err := p.Wait(t.Context()); err != nil || exit.Code != 128+13 {
			t.Errorf("yes ended with %v, %v; want SIGPIPE", exit, err)
		}
	})
}

func TestOpenSSHTerminalIsHungUp(t *testing.T) {
	forEachProvider(t, func(t *testing.T, r *rig) {
		cmd := openSSH(t, r)("ssh", "-tt", "web@127.0.0.1", "sleep 1000")
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		defer in.Close()
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		p := r.awaitProcess(t, "sleep 1000")
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if exit, err := p.Wait(t.Context()); err != nil || exit.Signal != atoll.SIGHUP {
			t.Errorf("ended with %v, %v; want SIGHUP", exit, err)
		}
	})
}

func TestOpenSSHForward(t *testing.T) {
	r := newRig(t, providers["local"](t), nil)
	call := openSSH(t, r)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Write([]byte("hello from inside\n"))
			conn.Close()
		}
	}()
	stdout, stderr, code := runCommand(call("ssh", "-W", l.Addr().String(), "web@127.0.0.1"))
	if stdout != "hello from inside\n" || code != 0 {
		t.Errorf("ssh -W: %q, %q, code %d", stdout, stderr, code)
	}
	if _, stderr, code := runCommand(call("ssh", "-W", "example.com:80", "web@127.0.0.1")); code == 0 || !strings.Contains(stderr, "only ports of the sandbox itself") {
		t.Errorf("ssh -W to another host: %q, code %d", stderr, code)
	}
	control := filepath.Join(t.TempDir(), "c")
	master := call("ssh", "-M", "-N", "-S", control, "web@127.0.0.1")
	if err := master.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the master is there", func() bool { _, err := os.Stat(control); return err == nil })
	for range 3 {
		if stdout, stderr, code := runCommand(call("ssh", "-S", control, "web@127.0.0.1", "echo shared")); stdout != "shared\n" || code != 0 {
			t.Errorf("over a shared connection: %q, %q, code %d", stdout, stderr, code)
		}
	}
	_ = master.Process.Kill()
	_ = master.Wait()
}

func TestOpenSSHCopies(t *testing.T) {
	forEachProvider(t, func(t *testing.T, r *rig) {
		call := openSSH(t, r)
		dir := t.TempDir()
		big := bytes.Repeat([]byte("0123456789abcde\n"), 64<<10)
		when := time.Unix(1_500_000_000, 0)
		for name, data := range map[string][]byte{"small": []byte("small\n"), "big": big, "tree/sub/leaf": []byte("leaf\n")} {
			path := filepath.Join(dir, name)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, data, 0o750); err != nil {
				t.Fatal(err)
			}
			if err := os.Chtimes(path, when, when); err != nil {
				t.Fatal(err)
			}
		}
		run := func(program string, args ...string) {
			t.Helper()
			if stdout, stderr, code := runCommand(call(program, args...)); code != 0 || stderr != "" && program == "scp" {
				t.Errorf("%s %q: code %d, %q, %q", program, args, code, stdout, stderr)
			}
		}
		at := func(name string) string { return filepath.Join(dir, name) }
		run("scp", at("big"), "web@127.0.0.1:big")
		run("scp", "web@127.0.0.1:big", at("back"))
		if back, err := os.ReadFile(at("back")); err != nil || !bytes.Equal(back, big) {
			t.Errorf("%d bytes came back of %d, %v", len(back), len(big), err)
		}
		run("scp", "-r", "-p", at("tree"), "web@127.0.0.1:")
		info, err := atoll.Files(r.sb).Stat(t.Context(), "tree/sub/leaf")
		if err != nil || r.fileContent(t, "tree/sub/leaf") != "leaf\n" || info.Mode != 0o750 || !info.Modified.Equal(when) {
			t.Errorf("scp -p: %+v, %v", info, err)
		}
		run("scp", "-r", "web@127.0.0.1:tree", at("tree2"))
		if leaf, err := os.ReadFile(at("tree2/sub/leaf")); err != nil || string(leaf) != "leaf\n" {
			t.Errorf("scp -r: %q, %v", leaf, err)
		}
		batch := at("batch")
		commands := strings.ReplaceAll(`
put small
put -p small dated
mkdir d
cd d
put DIR/small renamed
rename renamed final
ln -s final link
get link DIR/linked
ls -l
put DIR/big grow
chmod 700 .
cd ..
rm dated
`, "DIR", dir)
		if err := os.WriteFile(batch, []byte("lcd "+dir+commands), 0o600); err != nil {
			t.Fatal(err)
		}
		// half of the file exists: reput has to resume
		if err := atoll.Files(r.sb).Mkdir(t.Context(), "e", 0); err != nil {
			t.Fatal(err)
		}
		if err := atoll.WriteFile(t.Context(), r.sb, "e/half", big[:len(big)/2], 0); err != nil {
			t.Fatal(err)
		}
		run("sftp", "-b", batch, "web@127.0.0.1")
		if got := r.fileContent(t, "d/final"); got != "small\n" {
			t.Errorf("put and rename: %q", got)
		}
		if linked, err := os.ReadFile(at("linked")); err != nil || string(linked) != "small\n" {
			t.Errorf("get by a link: %q, %v", linked, err)
		}
		if err := os.WriteFile(batch, []byte("reput "+at("big")+" e/half\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		run("sftp", "-b", batch, "web@127.0.0.1")
		if got := r.fileContent(t, "e/half"); got != string(big) {
			t.Errorf("resumed: %d bytes of %d", len(got), len(big))
		}
		if stdout, stderr, code := runCommand(call("scp", at("small"), "nobody@127.0.0.1:x")); code == 0 || !strings.Contains(stderr, "sandbox not found") {
			t.Errorf("scp to no sandbox: code %d, %q, %q", code, stdout, stderr)
		}
	})
}

// The client's user learns why something is refused. A command does not run if its user
// insists on a port that is refused.
func TestOpenSSHRefusals(t *testing.T) {
	forEachProvider(t, func(t *testing.T, r *rig) {
		call := openSSH(t, r)
		agent := serveAgent(t)
		for _, c := range []struct {
			args           []string
			stdout, stderr string
			code           int
		}{
			{[]string{"-R", "7333:127.0.0.1:1", "-R", "7334:127.0.0.1:1"}, "ran\n", "ports of your side are not forwarded (-R)", 0},
			{[]string{"-o", "ExitOnForwardFailure=yes", "-R", "7333:127.0.0.1:1"}, "", "ports of your side are not forwarded (-R)", 255},
			{[]string{"-A"}, "ran\n", "the agent is not forwarded (-A)", 0},
			{[]string{"-T"}, "ran\n", "", 0},
		} {
			cmd := call("ssh", append(c.args, "web@127.0.0.1", "echo ran")...)
			cmd.Env = append(cmd.Env, "SSH_AUTH_SOCK="+agent)
			stdout, stderr, code := runCommand(cmd)
			if stdout != c.stdout || code != c.code || !strings.Contains(stderr, c.stderr) {
				t.Errorf("ssh %q: %q, %q, code %d; want %q, %q, code %d", c.args, stdout, stderr, code, c.stdout, c.stderr, c.code)
			}
			if lines := strings.Count(stderr, "atoll:"); lines > 1 || (lines > 0) != (c.stderr != "") {
				t.Errorf("ssh %q: the server says %q", c.args, stderr)
			}
		}
		_, stderr, code := runCommand(call("ssh", "-N", "-o", "ExitOnForwardFailure=yes", "-R", "7333:127.0.0.1:1", "web@127.0.0.1"))
		if code == 0 || !strings.Contains(stderr, "remote port forwarding failed") {
			t.Errorf("ssh -N -R: %q, code %d", stderr, code)
		}
	})
}

// serveAgent returns the socket of an agent without keys.
func serveAgent(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "agent")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	t.Cleanup(func() {
		l.Close()
		serving.Wait()
	})
	serving.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				defer conn.Close()
				_ = agent.ServeAgent(agent.NewKeyring(), conn) // until the client has gone
			})
		}
	})
	return path
}
