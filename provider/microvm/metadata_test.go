//go:build linux

package microvm_test

import (
	"encoding/json"
	"io"
	"reflect"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/layer/workspace"
	"github.com/seed46cd37a8/atoll/machine/vm"
)

// A sandbox's programs find out what it is for from a file that nobody can change, and
// what is worked on at a place of its own.
func TestMetadata(t *testing.T) {
	need(t)
	t.Run("shared", func(t *testing.T) { testMetadata(t, maker(fresh), vm.MetadataTag) })
	t.Run("on a disk", func(t *testing.T) { testMetadata(t, maker(onFirecracker), "/dev/vdd") })
}

func testMetadata(t *testing.T, fresh maker, device string) {
	l := fresh.lab(t)
	agent := []string{"python3", "-c", "import socket; s = socket.create_server(('127.0.0.1', 3002))\nwhile True: s.accept()[0].sendall(b'here')"}
	sb := l.create(atoll.Spec{
		User: "nobody", Cmd: agent,
		Env: []string{atoll.SecretVar + "=salt:hash", workspace.Var + "=/work", workspace.SourceVar + "=https://example.com/r.git", workspace.CommitVar + "=abc123"},
	})
	var got vm.Metadata
	if err := json.Unmarshal([]byte(l.sh(sb, "cat "+vm.MetadataDir+"/"+vm.MetadataName)), &got); err != nil {
		t.Fatal(err)
	}
	port := int(vm.PortAgent)
	want := vm.Metadata{
		SessionID: sb.ID(), Secret: "salt:hash",
		Workspace: &vm.MetadataWorkspace{Path: "https://example.com/r.git", Commit: "abc123", MountPoint: "/.workspace.origin"},
		Agent:     &vm.MetadataAgent{Command: agent[0], Args: agent[1:], Port: port, Vsock: vm.MetadataVsock{Port: port}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("it says %+v, want %+v", got, want)
	}
	res, err := atoll.Capture(l.ctx(), sb, &atoll.Command{User: "root", Args: []string{"sh", "-c", "mount -o remount,rw " + vm.MetadataDir + " 2>/dev/null; echo x >>" + vm.MetadataDir + "/" + vm.MetadataName}}, 0)
	if err != nil || res.Code == 0 {
		t.Errorf("it can be changed: %v, %v", res, err)
	}
	if out := l.sh(sb, "grep "+vm.MetadataDir+" /proc/mounts | cut -d' ' -f1; echo hello >/work/f; cat /.workspace.origin/f"); out != device+"\nhello" {
		t.Errorf("where it is, and the workspace: %q", out)
	}
	conn, err := atoll.Dial(l.ctx(), sb, port)
	for end := time.Now().Add(patience); err != nil && time.Now().Before(end); conn, err = atoll.Dial(l.ctx(), sb, port) {
		time.Sleep(50 * time.Millisecond) // it is about to listen
	}
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if heard, err := io.ReadAll(io.LimitReader(conn, 4)); err != nil || string(heard) != "here" {
		t.Errorf("the agent says %q, %v", heard, err)
	}
}
