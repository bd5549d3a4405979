package wsl2_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/fakewsl"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/internal/testing/testimage"
	"github.com/seed46cd37a8/atoll/internal/usernet"
	"github.com/seed46cd37a8/atoll/machine/guest"
	"github.com/seed46cd37a8/atoll/machine/vm"
	"github.com/seed46cd37a8/atoll/machine/vm/vmtest"
	"github.com/seed46cd37a8/atoll/server/api/client"
)

func TestSuite(t *testing.T) {
	h := newHouse(t)
	vmtest.Run(t, vmtest.Lab{Driver: h.driver(), Hardware: func(testing.TB) *vm.Hardware { return &vm.Hardware{Root: h.h.Root} }})
}

// boxID is the id of the sandbox in a machine.
const boxID = "0123456789abcdef0123456789abcdef"

func ctxOf(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Scale(time.Minute))
	t.Cleanup(cancel)
	return ctx
}

// tell tells a guest what it is.
func tell(t *testing.T, m vm.Machine, change func(*guest.Setup)) guest.Reply {
	t.Helper()
	conn, err := m.Dial(ctxOf(t), vm.PortControl)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	setup := &guest.Setup{Config: guest.Config{ID: boxID, Workdir: "/work"}, Hostname: "box", Time: 1, Entropy: make([]byte, 32), Root: guest.Root{Disk: "root"}}
	change(setup)
	var reply guest.Reply
	if err := json.NewEncoder(conn).Encode(guest.Order{Setup: setup}); err != nil {
		t.Fatal(err)
	}
	if err := json.NewDecoder(conn).Decode(&reply); err != nil {
		t.Fatal(err)
	}
	return reply
}

// inside returns the sandbox in a machine after its guest has got its setup.
func inside(t *testing.T, m vm.Machine, change func(*guest.Setup)) atoll.Sandbox {
	t.Helper()
	if err := tell(t, m, change).Err("set up", boxID); err != nil {
		t.Fatal(err)
	}
	info := atoll.Info{Name: "guest"}
	c, err := client.New(t.Context(), client.Options{Info: &info, Dial: func(ctx context.Context) (net.Conn, error) { return m.Dial(ctx, vm.PortAPI) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c.Sandbox(boxID)
}

func output(t *testing.T, sb atoll.Sandbox, script string) string {
	t.Helper()
	out, err := atoll.Output(ctxOf(t), sb, &atoll.Command{Args: []string{"sh", "-c", script}})
	if err != nil {
		t.Fatalf("%s: %v", script, err)
	}
	return strings.TrimSpace(string(out))
}

// helper is a program for machines. Called "fetch URL" it counts the bytes of a page, which
// a static busybox cannot. Else it is a service: on a Unix socket it tells how often it was
// started, which it keeps where others have a disk, and with what.
const helper = `package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"
)

func fetch(url string) {
	r, err := (&http.Client{Timeout: 2 * time.Minute}).Get(url)
	if err == nil {
		var n int64
		n, err = io.Copy(io.Discard, r.Body)
		fmt.Println(n)
	}
	if err != nil {
		fmt.Println(err)
	}
}

func main() {
	if os.Args[1] == "fetch" {
		fetch(os.Args[2])
		return
	}
	f, err := os.OpenFile("/var/lib/counter/starts", os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o600)
	if err == nil {
		_, err = f.WriteString("+")
	}
	if err != nil {
		panic(err)
	}
	text, _ := os.ReadFile("/var/lib/counter/starts")
	fmt.Fprintln(os.Stderr, "the counter begins")
	l, err := net.Listen("unix", "/run/counter.sock")
	if err != nil {
		panic(err)
	}
	for {
		conn, err := l.Accept()
		if err != nil {
			panic(err)
		}
		fmt.Fprintf(conn, "%s %s", text, os.Args[1])
		conn.Close()
	}
}
`

const counterPort = 2375

func withCounter(s *guest.Setup) {
	s.Init = &vm.Init{
		Disks:   []vm.InitDisk{{ID: "data", Format: "ext4", Label: "data", Mount: "/var/lib/counter"}},
		Start:   []vm.InitProcess{{Args: []string{"/program", "yes"}}},
		Bridges: []vm.InitBridge{{Port: counterPort, Unix: "/run/counter.sock"}},
	}
}

// count asks the counter, which takes its time to listen.
func count(t *testing.T, m vm.Machine) string {
	t.Helper()
	for ctx := ctxOf(t); ; time.Sleep(10 * time.Millisecond) {
		conn, err := m.Dial(ctx, counterPort)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(conn)
		conn.Close()
		if err == nil && len(text) > 0 {
			return string(text)
		}
	}
}

// withHelper has a house's machines have the helper, in these layers.
func withHelper(h *house) []v1.Layer {
	layers, err := testimage.Program(h.t, helper).Layers()
	if err != nil {
		h.t.Fatal(err)
	}
	h.archive("one", layers...)
	return layers
}

// The system programs of a machine run in a distribution, and the next one has its data.
func TestServices(t *testing.T) {
	h := newHouse(t)
	layers := withHelper(h)
	for i, want := range []string{"+ yes", "++ yes", "+++ yes"} {
		h.h.ID = fmt.Sprintf("m-%d", i)
		if i == 2 {
			h.archive("two", layers...)
		}
		m := h.start()
		sb := inside(t, m, withCounter)
		if got := count(t, m); got != want {
			t.Errorf("in life %d the service says %q, want %q", i, got, want)
		}
		if i == 0 {
			checkInside(t, sb)
			if err := m.Stop(ctxOf(t)); err != nil {
				t.Error(err)
			}
		}
		kill(t, m)
	}
	h.wantFiles(map[string]string{"var/lib/counter/starts": "+++", "etc/version": "two"})
	if text, err := os.ReadFile(h.h.Console); err != nil || strings.Count(string(text), "the counter begins\n") != 3 {
		t.Errorf("the console has %q, %v", text, err)
	}
}

// checkInside looks at what programs see: theirs, and nothing of WSL's or of the machine
// around it.
func checkInside(t *testing.T, sb atoll.Sandbox) {
	t.Helper()
	for script, want := range map[string]string{
		"cat /proc/sys/kernel/hostname":  "box",
		"ls /lib/modules":                "there",
		"ls /mnt/wsl":                    "",
		"tr '\\0' ' ' < /proc/1/cmdline": guestPath + " distro",
		"ps | grep -c '[w]sl.exe'":       "0",
		"ls /sys/class/net":              "lo",
		"touch /tmp/x /run/y && echo > /dev/null && test ! -e /dev/kmsg && echo x": "x",
		"grep -q ' /sys/fs/cgroup.* cgroup' /proc/mounts && echo yes":              "yes",
		"test ! -e /proc/sysrq-trigger -o -c /proc/sysrq-trigger && echo safe":     "safe",
		"cat /etc/version; echo; pwd":                                              "one\n/work",
	} {
		out, err := atoll.Output(ctxOf(t), sb, &atoll.Command{Args: []string{"sh", "-c", script}})
		if got := strings.TrimSpace(string(out)); got != want || err != nil && want != "" && want != "0" {
			t.Errorf("%s: %q, %v, want %q", script, got, err, want)
		}
	}
	if err := atoll.WriteFile(ctxOf(t), sb, "file", []byte("text"), 0o644); err != nil {
		t.Error(err)
	}
	if got := output(t, sb, "cat /work/file"); got != "text" {
		t.Errorf("the file has %q", got)
	}
}

// Features that a distribution lacks are refused, rather than left out.
func TestSetUpRefuses(t *testing.T) {
	h := newHouse(t)
	for what, change := range map[string]func(*guest.Setup){
		"read-only": func(s *guest.Setup) { s.Root.Fixed = true },
		"processes": func(s *guest.Setup) { s.Processes = 10 },
		"/disk":     func(s *guest.Setup) { s.Mounts = []guest.MachineDir{{Target: "/disk", Disk: "data"}} },
		"/share":    func(s *guest.Setup) { s.Mounts = []guest.MachineDir{{Target: "/share", Share: "mine"}} },
	} {
		m := h.start()
		if reply := tell(t, m, change); reply.Kind != atoll.ErrUnsupported || !strings.Contains(reply.Message, what) {
			t.Errorf("%s: %+v", what, reply)
		}
		kill(t, m)
	}
}

// network is a sandbox's network at the other end of a machine's card. Whatever is dialled
// is the server.
func network(t *testing.T, m vm.Machine, server string) *usernet.Network {
	t.Helper()
	conn, err := m.Dial(ctxOf(t), vm.PortNetwork)
	if err != nil {
		t.Fatal(err)
	}
	policy, err := usernet.NewPolicy(atoll.Network{Mode: atoll.NetworkOn})
	if err != nil {
		t.Fatal(err)
	}
	n, err := usernet.New(vm.Frames(conn), usernet.Options{Policy: policy, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, server)
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.Close() })
	return n
}

// Programs in a distribution have the network that its host makes, and not WSL's.
func TestNetwork(t *testing.T) {
	page := strings.Repeat("a page of the host's\n", 100_000)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, page) }))
	defer server.Close()
	here := server.Listener.Addr().(*net.TCPAddr)
	h := newHouse(t)
	withHelper(h)
	m := h.start()
	if _, err := m.Dial(ctxOf(t), vm.PortNetwork); atoll.KindOf(err) != atoll.ErrUnavailable {
		t.Errorf("before the machine has a network: %v", err)
	}
	sb := inside(t, m, func(s *guest.Setup) {
		s.Network = &guest.Interface{
			Addresses: []string{usernet.Guest.String(), usernet.Guest6.String()}, Gateways: []string{usernet.Gateway.Addr().String(), usernet.Gateway6.Addr().String()},
			DNS: []string{usernet.Gateway.Addr().String()}, MTU: usernet.DefaultMTU, MAC: usernet.GuestMAC.String(),
		}
	})
	n := network(t, m, here.String())
	const fetch = "/program fetch http://1.2.3.4/"
	for range 3 {
		if got := output(t, sb, fetch); got != fmt.Sprint(len(page)) {
			t.Errorf("it reads %s, want %d", got, len(page))
		}
	}
	if got := output(t, sb, "/program fetch 'http://[2606::1]/'"); got != fmt.Sprint(len(page)) {
		t.Errorf("by IPv6 it reads %s", got)
	}
	if got := output(t, sb, fmt.Sprintf("/program fetch http://%s/", here)); !strings.Contains(got, "connection refused") {
		t.Errorf("from the loopback of the machine around it it reads %s", got)
	}
	if got := output(t, sb, "ls /sys/class/net"); got != "eth0\nlo" {
		t.Errorf("it has the cards %q", got)
	}
	if got := output(t, sb, "cat /etc/resolv.conf"); got != "nameserver "+usernet.Gateway.Addr().String() {
		t.Errorf("it asks %q for names", got)
	}
	second, err := m.Dial(ctxOf(t), vm.PortNetwork)
	if err == nil {
		second.SetReadDeadline(time.Now().Add(testenv.Scale(30 * time.Second)))
		_, err = second.Read(make([]byte, 1))
		second.Close()
	}
	if err != io.EOF {
		t.Errorf("a second one who has the card: %v", err)
	}
	if err := n.Close(); err != nil {
		t.Error(err)
	}
	for end := time.Now().Add(testenv.Scale(time.Minute)); ; time.Sleep(20 * time.Millisecond) { // until the guest has noticed
		network(t, m, here.String())
		out, err := atoll.Output(ctxOf(t), sb, &atoll.Command{Args: []string{"sh", "-c", fetch}})
		if err == nil && strings.TrimSpace(string(out)) == fmt.Sprint(len(page)) {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the next one who comes: %q, %v", out, err)
		}
	}
}

// A guest ends with its stdin, and all that runs in it.
func TestGuestEndsWithStdin(t *testing.T) {
	h := newHouse(t)
	kill(t, h.start()) // so that the distribution is there
	d := h.one()
	cmd := exec.Command(h.opts.Program, "--distribution", d.Name, "--user", "root", "--cd", "/", "--exec", guestPath, "distro")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := in.Write([]byte("nothing that a host says")); err != nil {
		t.Fatal(err)
	}
	in.Close()
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v: %s", err, said.Bytes())
	}
	h.await("something runs on", func(d fakewsl.Distribution) bool { return d.PID == 0 })
}
