package statedir

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"testing"
	"time"
)

// Kill kills only the identified process.
func TestIdentity(t *testing.T) {
	if os.Getenv("ATOLL_TEST_WAIT") != "" {
		_, _ = os.Stdout.Write([]byte{'x'})
		<-time.After(time.Hour) // to be killed
	}
	testKill(t, Identity.Kill)
}

func testKill(t *testing.T, kill func(Identity, context.Context) error) {
	cmd := rerunTest("TestIdentity", "ATOLL_TEST_WAIT=1")
	out, err := cmd.StdoutPipe()
	must(t, "pipe", err)
	must(t, "start", cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	_, err = out.Read(make([]byte, 1))
	must(t, "read", err)
	id, err := Identify(cmd.Process.Pid)
	must(t, "identify", err)
	if again, err := Identify(cmd.Process.Pid); again != id || err != nil || id.PID != cmd.Process.Pid || id.Start == "" {
		t.Errorf("identities %+v and %+v, %v", id, again, err)
	}
	for name, change := range map[string]func(*Identity){
		"started at another time": func(i *Identity) { i.Start += "1" },
		"before a reboot":         func(i *Identity) { i.Boot = "00000000-0000-0000-0000-000000000000" },
		"none":                    func(i *Identity) { *i = Identity{} },
		"init":                    func(i *Identity) { i.PID = 1 },
	} {
		other := id
		change(&other)
		must(t, name, kill(other, t.Context()))
		if now, err := Identify(cmd.Process.Pid); err != nil || now != id {
			t.Fatalf("%s: killed another: %+v, %v", name, now, err)
		}
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	must(t, "kill", kill(id, t.Context()))
	if err := <-done; err == nil {
		t.Error("it ended by itself")
	}
	must(t, "kill the dead", kill(id, t.Context()))
	if _, err := Identify(id.PID); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("identify the dead: %v", err)
	}
}
