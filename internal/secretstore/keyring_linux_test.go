package secretstore

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/zalando/go-keyring"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

// busConfig is the configuration of a session bus that starts no services: it would start a second keyring, which is locked.
const busConfig = `<busconfig><type>session</type><listen>unix:tmpdir=/tmp</listen><auth>EXTERNAL</auth><policy context="default">
<allow send_destination="*" eavesdrop="true"/><allow eavesdrop="true"/><allow own="*"/></policy></busconfig>`

// startBus starts a session bus, and makes it that of this process.
func startBus(t *testing.T) {
	t.Helper()
	testenv.Need(t, testenv.Program("dbus-daemon", "dbus-daemon"), testenv.Program("gnome-keyring-daemon", "gnome-keyring"))
	home := t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("XDG_RUNTIME_DIR", home)
	t.Setenv("XDG_DATA_HOME", home)
	config := filepath.Join(home, "bus.conf")
	if err := os.WriteFile(config, []byte(busConfig), 0o600); err != nil {
		t.Fatal(err)
	}
	bus := exec.Command("dbus-daemon", "--config-file="+config, "--nofork", "--print-address")
	out, err := bus.StdoutPipe()
	if err == nil {
		err = bus.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = bus.Process.Kill()
		_ = bus.Wait() // it was killed
	})
	address, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("DBUS_SESSION_BUS_ADDRESS", strings.TrimSpace(address))
}

// The keyring of GNOME has a password, and says so if it has none, or if nothing serves it.
func TestKeyring(t *testing.T) {
	t.Setenv("DBUS_SESSION_BUS_ADDRESS", "unix:path=/nowhere")
	checkReads(t, nil, map[string]failure{
		"keyring:svc/me": {atoll.ErrUnavailable, "the keyring of the desktop does not answer"},
		"keyring:/me":    {atoll.ErrInvalid, "write it like"},
		"keyring:svc/":   {atoll.ErrInvalid, "write it like"},
		"keyring:svc":    {atoll.ErrInvalid, "write it like"},
	})
	startBus(t)
	daemon := exec.Command("gnome-keyring-daemon", "--unlock", "--foreground", "--components=secrets")
	daemon.Stdin = strings.NewReader("password of the keyring")
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = daemon.Process.Kill()
		_ = daemon.Wait() // it was killed
	}()
	for end := time.Now().Add(testenv.Scale(20 * time.Second)); ; time.Sleep(20 * time.Millisecond) {
		err := keyring.Set("https://svc.example/x", "me@svc.example", "hidden-value")
		if err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
	checkReads(t, map[string]string{"keyring:https://svc.example/x/me@svc.example": "hidden-value"}, map[string]failure{
		"keyring:svc/none": {atoll.ErrNotExist, "secret-tool store"},
	})
	// A supervisor is root in a user namespace, and the bus knows the user.
	inside := exec.Command(os.Args[0])
	inside.Env = append(os.Environ(), sourceVariable+"=keyring:https://svc.example/x/me@svc.example")
	id := 0
	if os.Geteuid() == 0 {
		id = 1000
	}
	inside.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: id, HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: id, HostID: os.Getegid(), Size: 1}},
	}
	out, err := inside.CombinedOutput()
	if string(out) != "hidden-value <nil>\n" {
		t.Errorf("in a user namespace: got %q, %v", out, err)
	}
}
