//go:build linux

package fakemodal_test

import (
	"context"
	"io"
	"strings"
	"testing"
	"time"

	pb "github.com/modal-labs/libmodal/modal-go/proto/modal_proto"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

func TestFaults(t *testing.T) {
	l := newLab(t)
	l.server.Intercept(func(method string) error {
		if method == "SandboxCreate" {
			return status.Error(codes.ResourceExhausted, "no more")
		}
		return nil
	})
	_, err := l.Sandboxes.Create(l.ctx(), l.app, l.Images.FromRegistry(l.busybox, nil), nil)
	wantCode(t, "create", err, codes.ResourceExhausted, "no more")
	l.server.Intercept(nil)
	if n := l.server.Calls("SandboxCreate"); n != 1 {
		t.Errorf("%d calls, want 1", n)
	}
	sb := l.create(nil)
	l.server.DropAnswer("SandboxCreate")
	lost := l.server.Sandboxes()
	_, err = l.Sandboxes.Create(l.ctx(), l.app, l.Images.FromRegistry(l.busybox, nil), nil)
	wantCode(t, "create", err, codes.Unavailable, "")
	if n := len(l.server.Sandboxes()) - len(lost); n != 1 {
		t.Errorf("a call whose answer is lost created %d sandboxes, want 1", n)
	}

	// The SDK resumes reading after a cut.
	l.server.Cut("ContainerExecGetOutput", 1)
	l.server.Cut("ContainerExecGetOutput", 0)
	l.server.Cut("ContainerExecGetOutput", 2)
	out, errs, code := l.runScript(sb, "for i in 1 2 3 4 5; do echo $i; echo e$i >&2; sleep 0.1; done; exit 9")
	if out != "1\n2\n3\n4\n5\n" || errs != "e1\ne2\ne3\ne4\ne5\n" || code != 9 {
		t.Errorf("got %q, %q, %d", out, errs, code)
	}
	if n := l.server.Calls("ContainerExecGetOutput"); n < 5 {
		t.Errorf("%d streams, want two and one more for each cut", n)
	}
	l.server.Cut("SandboxGetLogs", 0)
	logs, err := l.raw.SandboxGetLogs(l.ctx(), pb.SandboxGetLogsRequest_builder{SandboxId: sb.SandboxID, Timeout: 20, FileDescriptor: pb.FileDescriptor_FILE_DESCRIPTOR_STDOUT}.Build())
	l.must("logs", err)
	l.must("terminate", sb.Terminate(l.ctx()))
	if _, err := logs.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("cut: %v", err)
	}
	if out, err := io.ReadAll(sb.Stdout); len(out) != 0 || err != nil {
		t.Errorf("stdout %q, %v", out, err)
	}
}

// Clients reconnect after Disconnect and continue to read.
func TestDisconnect(t *testing.T) {
	l := newLab(t)
	sb := l.create(nil)
	p, err := sb.Exec(l.ctx(), []string{"sh", "-c", "echo before; read line; echo after $line"}, nil)
	l.must("exec", err)
	first := make([]byte, 7)
	if _, err := io.ReadFull(p.Stdout, first); string(first) != "before\n" || err != nil {
		t.Fatalf("got %q, %v", first, err)
	}
	l.server.Disconnect()
	ctx := l.ctx()
	for { // the SDK repeats calls, but the connection of this test does not
		if _, err = io.WriteString(p.Stdin, "this\n"); status.Code(err) != codes.Unavailable || ctx.Err() != nil {
			break
		}
	}
	l.must("write", err)
	if rest, err := io.ReadAll(p.Stdout); string(rest) != "after this\n" || err != nil {
		t.Errorf("got %q, %v", rest, err)
	}
}

func TestTokens(t *testing.T) {
	l := newLab(t)
	conn, err := grpc.NewClient(strings.TrimPrefix(l.server.URL(), "http://"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	l.must("connect", err)
	t.Cleanup(func() { conn.Close() })
	client := pb.NewModalClientClient(conn)
	for _, c := range []struct {
		says    string
		headers []string
	}{
		{"Token missing", nil},
		{"Token missing", []string{"x-modal-token-id", l.server.TokenID()}},
		{"malformed", []string{"x-modal-token-id", "id", "x-modal-token-secret", "as-x"}},
		{"validation failed", []string{"x-modal-token-id", l.server.TokenID(), "x-modal-token-secret", "as-x"}},
		{"x-modal-auth-token", []string{"x-modal-token-id", l.server.TokenID(), "x-modal-token-secret", l.server.TokenSecret()}},
		{"x-modal-auth-token", []string{"x-modal-token-id", l.server.TokenID(), "x-modal-token-secret", l.server.TokenSecret(), "x-modal-auth-token", "a.b.c"}},
	} {
		ctx := metadata.AppendToOutgoingContext(l.ctx(), c.headers...)
		_, err := client.SandboxList(ctx, &pb.SandboxListRequest{})
		wantCode(t, c.says, err, codes.Unauthenticated, c.says)
	}
	stream, err := client.SandboxGetLogs(l.ctx(), &pb.SandboxGetLogsRequest{})
	l.must("logs", err)
	_, err = stream.Recv()
	wantCode(t, "stream", err, codes.Unauthenticated, "Token missing")
}

// Close ends waiting calls and running sandboxes.
func TestClose(t *testing.T) {
	l := newLab(t)
	sb := l.create(nil)
	l.taskID(sb)
	waited := make(chan error, 1)
	go func() {
		_, err := l.raw.SandboxWait(context.Background(), pb.SandboxWaitRequest_builder{SandboxId: sb.SandboxID, Timeout: 600}.Build())
		waited <- err
	}()
	for deadline := time.Now().Add(testTimeout); l.server.Calls("SandboxWait") == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the call did not arrive")
		}
	}
	l.must("close", l.server.Close())
	if err := <-waited; err == nil {
		t.Error("a call continues after Close")
	}
	if left := l.server.Sandboxes(); len(left) > 0 {
		t.Errorf("Close left sandboxes %q", left)
	}
}
