//go:build linux

package fakemodal_test

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/modal-labs/libmodal/modal-go"
	pb "github.com/modal-labs/libmodal/modal-go/proto/modal_proto"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/internal/testing/testimage"
)

func (l *testLab) taskID(sb *modal.Sandbox) string {
	l.t.Helper()
	resp, err := l.raw.SandboxGetTaskId(l.ctx(), pb.SandboxGetTaskIdRequest_builder{SandboxId: sb.SandboxID}.Build())
	l.must("task id", err)
	return resp.GetTaskId()
}

// Input arrives in the order of its numbers, each message once, and a reader can continue where
// another one ended.
func TestExecProtocol(t *testing.T) {
	l := newLab(t)
	sb := l.create(nil)
	resp, err := l.raw.ContainerExec(l.ctx(), pb.ContainerExecRequest_builder{TaskId: l.taskID(sb), Command: []string{"cat"}}.Build())
	l.must("exec", err)
	id := resp.GetExecId()
	put := func(index uint64, text string, eof bool) {
		t.Helper()
		_, err := l.raw.ContainerExecPutInput(l.ctx(), pb.ContainerExecPutInputRequest_builder{
			ExecId: id, Input: pb.RuntimeInputMessage_builder{Message: []byte(text), MessageIndex: index, Eof: eof}.Build(),
		}.Build())
		l.must("put", err)
	}
	put(2, "b", false)
	put(1, "a", false)
	put(1, "a", false)
	put(2, "b", false)
	read := func(from uint64, timeout float32) (text string, last uint64, code *int32) {
		t.Helper()
		stream, err := l.raw.ContainerExecGetOutput(l.ctx(), pb.ContainerExecGetOutputRequest_builder{
			ExecId: id, Timeout: timeout, LastBatchIndex: from, FileDescriptor: pb.FileDescriptor_FILE_DESCRIPTOR_STDOUT, GetRawBytes: true,
		}.Build())
		l.must("output", err)
		for {
			batch, err := stream.Recv()
			if err == io.EOF {
				return text, from, code
			}
			l.must("output", err)
			from = batch.GetBatchIndex()
			for _, item := range batch.GetItems() {
				text += string(item.GetMessageBytes())
			}
			if batch.HasExitCode() {
				n := batch.GetExitCode()
				code = &n
			}
		}
	}
	var first string
	var last uint64
	for deadline := time.Now().Add(testTimeout); first != "ab" && time.Now().Before(deadline); {
		var text string
		text, last, _ = read(last, 0.1)
		first += text
	}
	if first != "ab" {
		t.Fatalf("got %q, want ab", first)
	}
	wait, err := l.raw.ContainerExecWait(l.ctx(), pb.ContainerExecWaitRequest_builder{ExecId: id}.Build())
	if err != nil || wait.GetCompleted() {
		t.Errorf("wait: %v, %v, want a running command", wait, err)
	}
	put(4, "", true)
	put(3, "c", false)
	if text, _, code := read(last, 20); text != "c" || code == nil || *code != 0 {
		t.Errorf("rest %q, %v", text, code)
	}
	if text, _, code := read(0, 20); text != "abc" || code == nil {
		t.Errorf("all %q, %v", text, code)
	}
	_, err = l.raw.ContainerExecPutInput(l.ctx(), pb.ContainerExecPutInputRequest_builder{ExecId: id, Input: pb.RuntimeInputMessage_builder{MessageIndex: 5}.Build()}.Build())
	wantCode(t, "input after the end", err, codes.FailedPrecondition, "finished")
}

func TestExecEnds(t *testing.T) {
	l := newLab(t)
	sb := l.create(nil)
	p, err := sb.Exec(l.ctx(), []string{"no-such-program"}, nil)
	l.must("exec", err)
	if _, errs, code := l.awaitExit(p); code != 128 || !strings.Contains(errs, "no-such-program") {
		t.Errorf("missing program: %q, %d", errs, code)
	}
	p, err = sb.Exec(l.ctx(), []string{"sleep", "60"}, &modal.SandboxExecParams{Timeout: time.Second})
	l.must("exec", err)
	if _, _, code := l.awaitExit(p); code != 137 {
		t.Errorf("time limit: %d, want 137", code)
	}
	p, err = sb.Exec(l.ctx(), []string{"sh", "-c", "stty size; test -t 2 && echo terminal; echo $TERM"}, &modal.SandboxExecParams{PTY: true})
	l.must("exec", err)
	if out, _, code := l.awaitExit(p); out != "24 80\r\nterminal\r\nxterm-256color\r\n" || code != 0 {
		t.Errorf("terminal: %q, %d", out, code)
	}
	p, err = sb.Exec(l.ctx(), []string{"sh", "-c", "head -c 5000000 /dev/zero; sleep 60"}, nil)
	l.must("exec", err)
	if n, err := io.CopyN(io.Discard, p.Stdout, 5_000_000); err != nil {
		t.Fatalf("%d bytes, then %v", n, err)
	}
	task := l.taskID(sb)
	l.must("terminate", sb.Terminate(l.ctx()))
	if _, err := p.Wait(l.ctx()); err != nil && status.Code(err) != codes.NotFound {
		t.Errorf("wait for a killed command: %v", err)
	}
	l.awaitResult(sb.SandboxID)
	_, err = l.raw.ContainerExec(l.ctx(), pb.ContainerExecRequest_builder{TaskId: task, Command: []string{"true"}}.Build())
	wantCode(t, "exec after the end", err, codes.FailedPrecondition, "not running")
}

func TestFiles(t *testing.T) {
	l := newLab(t)
	sb := l.create(nil)
	open := func(path, mode string) *modal.SandboxFile {
		t.Helper()
		f, err := sb.Open(l.ctx(), path, mode)
		l.must("open "+path, err)
		return f
	}
	write := func(f *modal.SandboxFile, text string) {
		t.Helper()
		if _, err := io.WriteString(f, text); err != nil {
			t.Fatal(err)
		}
	}
	f := open("/tmp/file", "w")
	write(f, "one ")
	write(f, "two")
	l.must("flush", f.Flush())
	if out, _, _ := l.runScript(sb, "cat /tmp/file"); out != "one two" {
		t.Errorf("after a flush: %q", out)
	}
	l.must("close", f.Close())
	f = open("/tmp/file", "a")
	write(f, " three")
	l.must("close", f.Close())
	f = open("/tmp/file", "r")
	all, err := io.ReadAll(f)
	if string(all) != "one two three" || err != nil {
		t.Errorf("read %q, %v", all, err)
	}
	l.must("close", f.Close())
	if _, err := f.Read(make([]byte, 1)); !errors.As(err, &modal.SandboxFilesystemError{}) {
		t.Errorf("read after close: %v", err)
	}
	for path, mode := range map[string]string{"/tmp/none": "r", "/none/x": "w", "/tmp": "r", "/tmp/file": "x", "/tmp/f": "rw"} {
		if _, err := sb.Open(l.ctx(), path, mode); !errors.As(err, &modal.SandboxFilesystemError{}) {
			t.Errorf("open %s %s: %v", path, mode, err)
		}
	}
	task := l.taskID(sb)
	do := func(req pb.ContainerFilesystemExecRequest_builder) string {
		t.Helper()
		req.TaskId = task
		return l.fileOperation(req.Build())
	}
	mkdir := pb.ContainerFileMkdirRequest_builder{Path: "/srv/a/b"}
	if got := do(pb.ContainerFilesystemExecRequest_builder{FileMkdirRequest: mkdir.Build()}); got != "SYSTEM_ERROR_CODE_NOENT: No such file or directory" {
		t.Errorf("mkdir without parents: %s", got)
	}
	mkdir.MakeParents = true
	got := do(pb.ContainerFilesystemExecRequest_builder{FileMkdirRequest: mkdir.Build()})
	got += do(pb.ContainerFilesystemExecRequest_builder{FileLsRequest: pb.ContainerFileLsRequest_builder{Path: "/srv"}.Build()})
	got += do(pb.ContainerFilesystemExecRequest_builder{FileRmRequest: pb.ContainerFileRmRequest_builder{Path: "/srv/a", Recursive: true}.Build()})
	got += do(pb.ContainerFilesystemExecRequest_builder{FileLsRequest: pb.ContainerFileLsRequest_builder{Path: "/srv"}.Build()})
	if got != `{"paths":["a"]}{"paths":[]}` {
		t.Errorf("mkdir, ls, rm, ls: %s", got)
	}
}

// fileOperation runs an operation and returns its output or error.
func (l *testLab) fileOperation(req *pb.ContainerFilesystemExecRequest) (text string) {
	l.t.Helper()
	resp, err := l.raw.ContainerFilesystemExec(l.ctx(), req)
	l.must("file operation", err)
	stream, err := l.raw.ContainerFilesystemExecGetOutput(l.ctx(), pb.ContainerFilesystemExecGetOutputRequest_builder{ExecId: resp.GetExecId(), Timeout: 20}.Build())
	l.must("output", err)
	for {
		batch, err := stream.Recv()
		l.must("output", err)
		if batch.HasError() {
			text += fmt.Sprintf("%s: %s", batch.GetError().GetErrorCode(), batch.GetError().GetErrorMessage())
		}
		for _, part := range batch.GetOutput() {
			text += string(part)
		}
		if batch.GetEof() {
			return text
		}
	}
}

func TestTunnels(t *testing.T) {
	image := testimage.WithSockets(t) // before newLab changes HOME, where go has its cache
	l := newLab(t)
	l.busybox = l.images.Push("sockets:1", image)
	sb := l.create(&modal.SandboxCreateParams{
		UnencryptedPorts: []int{7000}, EncryptedPorts: []int{7001}, IdleTimeout: max(6*time.Second, testenv.Scale(3*time.Second)).Round(time.Second),
		Command: []string{"sh", "-c", "for port in 7000 7001; do python3 -c '' 127.0.0.1 $port serve & done; wait"},
	})
	tunnels, err := sb.Tunnels(l.ctx(), testTimeout)
	l.must("tunnels", err)
	host, port, err := tunnels[7000].TCPSocket()
	l.must("socket", err)
	echo := func(dial func() (net.Conn, error)) {
		t.Helper()
		for deadline := time.Now().Add(testTimeout); ; time.Sleep(50 * time.Millisecond) {
			line, err := echoLine(dial)
			if line == "hello\n" {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("got %q, %v", line, err)
			}
		}
	}
	echo(func() (net.Conn, error) { return net.Dial("tcp", net.JoinHostPort(host, strconv.Itoa(port))) })
	host, port = tunnels[7001].TLSSocket()
	echo(func() (net.Conn, error) {
		return tls.Dial("tcp", net.JoinHostPort(host, strconv.Itoa(port)), &tls.Config{RootCAs: l.server.Certificates()})
	})
	if _, _, err := tunnels[7001].TCPSocket(); err == nil {
		t.Error("an encrypted port has a plain socket")
	}
	if r := l.awaitResult(sb.SandboxID); r.GetStatus() != pb.GenericResult_GENERIC_STATUS_IDLE_TIMEOUT {
		t.Errorf("result %v", r)
	}
	if conn, err := net.Dial("tcp", net.JoinHostPort(host, strconv.Itoa(port))); err == nil {
		conn.Close()
		t.Error("a tunnel is open after the sandbox has finished")
	}
}

func echoLine(dial func() (net.Conn, error)) (string, error) {
	conn, err := dial()
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(testTimeout)); err != nil {
		return "", err
	}
	if _, err := io.WriteString(conn, "hello\n"); err != nil {
		return "", err
	}
	return bufio.NewReader(conn).ReadString('\n')
}
