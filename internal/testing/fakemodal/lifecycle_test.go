//go:build linux

package fakemodal_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/modal-labs/libmodal/modal-go"
	pb "github.com/modal-labs/libmodal/modal-go/proto/modal_proto"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

// The main process gets its stdin, its output is in the logs as text, and the sandbox ends with it.
func TestMainProcess(t *testing.T) {
	l := newLab(t)
	sb := l.create(&modal.SandboxCreateParams{
		Command: []string{"sh", "-c", `pwd; head -n 1; printf 'a\303'; sleep 0.2; printf '\244 \377.' >&1; echo no >&2; exit 42`},
	})
	if _, err := io.WriteString(sb.Stdin, "hello\n"); err != nil {
		t.Fatal(err)
	}
	out, err := io.ReadAll(sb.Stdout)
	if want := "/\nhello\naä \uFFFD."; string(out) != want || err != nil {
		t.Errorf("stdout %q, %v, want %q", out, err, want)
	}
	errs, err := io.ReadAll(sb.Stderr)
	if string(errs) != "no\n" || err != nil {
		t.Errorf("stderr %q, %v", errs, err)
	}
	if code, err := sb.Wait(l.ctx()); code != 42 || err != nil {
		t.Errorf("wait: %d, %v, want 42", code, err)
	}
	if r := l.awaitResult(sb.SandboxID); r.GetStatus() != pb.GenericResult_GENERIC_STATUS_FAILURE {
		t.Errorf("result %v, want FAILURE", r)
	}
	again, err := l.Sandboxes.FromID(l.ctx(), sb.SandboxID)
	l.must("from id", err)
	if out, err := io.ReadAll(again.Stdout); !strings.HasPrefix(string(out), "/\nhello\n") || err != nil {
		t.Errorf("stdout after the end: %q, %v", out, err)
	}
	if _, err := sb.Exec(l.ctx(), []string{"true"}, nil); err == nil || !strings.Contains(err.Error(), "already completed") {
		t.Errorf("exec after the end: %v", err)
	}
	if _, err := sb.Stdin.Write([]byte("x")); grpcstatus.Code(err) != codes.FailedPrecondition {
		t.Errorf("stdin after the end: %v", err)
	}
	wantCode(t, "tags after the end", sb.SetTags(l.ctx(), map[string]string{"a": "b"}), codes.InvalidArgument, "already finished")
}

func TestMainTerminal(t *testing.T) {
	l := newLab(t)
	sb := l.create(&modal.SandboxCreateParams{PTY: true, Command: []string{"sh", "-c", "stty size; read line; echo got $line $TERM"}})
	if _, err := io.WriteString(sb.Stdin, "it\n"); err != nil {
		t.Fatal(err)
	}
	out, err := io.ReadAll(sb.Stdout)
	if err != nil || !strings.Contains(string(out), "24 80\r\n") || !strings.HasSuffix(string(out), "got it xterm-256color\r\n") {
		t.Errorf("got %q, %v", out, err)
	}
}

func TestResults(t *testing.T) {
	l := newLab(t)
	for name, c := range map[string]struct {
		params modal.SandboxCreateParams
		end    func(sb *modal.Sandbox) error
		want   pb.GenericResult_GenericStatus
		says   string
	}{
		"success":      {modal.SandboxCreateParams{Command: []string{"true"}}, nil, pb.GenericResult_GENERIC_STATUS_SUCCESS, ""},
		"timeout":      {modal.SandboxCreateParams{Timeout: time.Second}, nil, pb.GenericResult_GENERIC_STATUS_TIMEOUT, "timeout of 1s"},
		"idle timeout": {modal.SandboxCreateParams{IdleTimeout: time.Second}, nil, pb.GenericResult_GENERIC_STATUS_IDLE_TIMEOUT, "idle for 1s"},
		"terminated":   {modal.SandboxCreateParams{}, func(sb *modal.Sandbox) error { return sb.Terminate(l.ctx()) }, pb.GenericResult_GENERIC_STATUS_TERMINATED, ""},
		"preempted": {modal.SandboxCreateParams{}, func(sb *modal.Sandbox) error { return l.server.Preempt(sb.SandboxID) },
			pb.GenericResult_GENERIC_STATUS_INTERNAL_FAILURE, "worker is gone"},
		"not started": {modal.SandboxCreateParams{Command: []string{"/no/such"}}, nil, pb.GenericResult_GENERIC_STATUS_INIT_FAILURE, "/no/such"},
		"lost":        {modal.SandboxCreateParams{}, l.loseInner, pb.GenericResult_GENERIC_STATUS_INTERNAL_FAILURE, "was lost"},
	} {
		sb := l.create(&c.params)
		if c.end != nil {
			l.must(name, c.end(sb))
		}
		r := l.awaitResult(sb.SandboxID)
		if r.GetStatus() != c.want || !strings.Contains(r.GetException(), c.says) {
			t.Errorf("%s: %v, want %s: %s", name, r, c.want, c.says)
		}
		resp, err := l.raw.SandboxTerminate(l.ctx(), pb.SandboxTerminateRequest_builder{SandboxId: sb.SandboxID}.Build())
		if err != nil || resp.GetExistingResult().GetStatus() != c.want {
			t.Errorf("%s: terminate afterwards: %v, %v", name, resp, err)
		}
	}
	if left := l.server.Sandboxes(); len(left) > 0 {
		t.Errorf("unfinished sandboxes: %q", left)
	}
}

// loseInner waits until a sandbox runs and removes its sandbox of the backend without the server.
func (l *testLab) loseInner(sb *modal.Sandbox) error {
	if _, err := l.raw.SandboxGetTaskId(l.ctx(), pb.SandboxGetTaskIdRequest_builder{SandboxId: sb.SandboxID}.Build()); err != nil {
		return err
	}
	all, err := l.backend.List(l.ctx(), atoll.Filter{Labels: map[string]string{"sandbox": sb.SandboxID}})
	if err != nil || len(all) != 1 {
		return fmt.Errorf("%d sandboxes, %v", len(all), err)
	}
	inner, err := l.backend.Get(l.ctx(), all[0].ID)
	if err != nil {
		return err
	}
	return inner.Remove(l.ctx(), atoll.RemoveVolumes())
}

// A sandbox with a running command or with input is not idle.
func TestNotIdle(t *testing.T) {
	l := newLab(t)
	idle := max(4*time.Second, testenv.Scale(2*time.Second)).Round(time.Second) // a command must start within this time
	sb := l.create(&modal.SandboxCreateParams{IdleTimeout: idle})
	if out, _, code := l.runScript(sb, fmt.Sprintf("sleep %.1f; echo done", 2.5*idle.Seconds())); out != "done\n" || code != 0 {
		t.Errorf("got %q, %d", out, code)
	}
	if r := l.awaitResult(sb.SandboxID); r.GetStatus() != pb.GenericResult_GENERIC_STATUS_IDLE_TIMEOUT {
		t.Errorf("result %v", r)
	}
}

func TestNamesTagsAndLists(t *testing.T) {
	l := newLab(t)
	one := l.create(&modal.SandboxCreateParams{Name: "one.1_a-B"})
	_, err := l.Sandboxes.Create(l.ctx(), l.app, l.Images.FromRegistry(l.busybox, nil), &modal.SandboxCreateParams{Name: "one.1_a-B"})
	if !errors.As(err, &modal.AlreadyExistsError{}) {
		t.Errorf("used name: %v", err)
	}
	for _, name := range []string{strings.Repeat("x", 64), "a/b", "ä"} {
		_, err := l.Sandboxes.Create(l.ctx(), l.app, l.Images.FromRegistry(l.busybox, nil), &modal.SandboxCreateParams{Name: name})
		wantCode(t, "name "+name, err, codes.InvalidArgument, "Invalid Sandbox name")
	}
	found, err := l.Sandboxes.FromName(l.ctx(), "tests", "one.1_a-B", nil)
	l.must("from name", err)
	if found.SandboxID != one.SandboxID {
		t.Errorf("found %s, want %s", found.SandboxID, one.SandboxID)
	}
	two := l.create(nil)
	l.must("tags", one.SetTags(l.ctx(), map[string]string{"a": "1", "b": "2"}))
	l.must("tags", two.SetTags(l.ctx(), map[string]string{"a": "1"}))
	tags, err := one.GetTags(l.ctx())
	if want := map[string]string{"a": "1", "b": "2"}; !maps.Equal(tags, want) || err != nil {
		t.Errorf("tags %v, %v, want %v", tags, err, want)
	}
	l.wantList(modal.SandboxListParams{Tags: map[string]string{"a": "1"}}, two, one)
	l.wantList(modal.SandboxListParams{Tags: map[string]string{"a": "1", "b": "2"}}, one)
	l.wantList(modal.SandboxListParams{Tags: map[string]string{"a": "2"}})
	l.wantList(modal.SandboxListParams{AppID: l.app.AppID}, two, one)
	l.wantList(modal.SandboxListParams{Environment: "other"})

	l.must("terminate", one.Terminate(l.ctx()))
	l.awaitResult(one.SandboxID)
	l.wantList(modal.SandboxListParams{}, two)
	if _, err := l.Sandboxes.FromName(l.ctx(), "tests", "one.1_a-B", nil); !errors.As(err, &modal.NotFoundError{}) {
		t.Errorf("name of a finished sandbox: %v", err)
	}
	again := l.create(&modal.SandboxCreateParams{Name: "one.1_a-B"})
	all, err := l.raw.SandboxList(l.ctx(), pb.SandboxListRequest_builder{IncludeFinished: true}.Build())
	l.must("list", err)
	infos := all.GetSandboxes()
	if len(infos) != 3 || infos[0].GetId() != again.SandboxID || infos[2].GetId() != one.SandboxID {
		t.Fatalf("list with finished ones: %v", infos)
	}
	task := infos[2].GetTaskInfo()
	if infos[2].GetName() != "one.1_a-B" || len(infos[2].GetTags()) != 2 || task.GetFinishedAt() < infos[2].GetCreatedAt() || task.GetResult().GetStatus() != pb.GenericResult_GENERIC_STATUS_TERMINATED {
		t.Errorf("finished sandbox: %v", infos[2])
	}
}

// wantList checks the listed sandboxes, newest first.
func (l *testLab) wantList(params modal.SandboxListParams, want ...*modal.Sandbox) {
	l.t.Helper()
	list, err := l.Sandboxes.List(l.ctx(), &params)
	l.must("list", err)
	var got, ids []string
	for sb, err := range list {
		l.must("list", err)
		got = append(got, sb.SandboxID)
	}
	for _, sb := range want {
		ids = append(ids, sb.SandboxID)
	}
	if !slices.Equal(got, ids) {
		l.t.Errorf("list %+v: %q, want %q", params, got, ids)
	}
}

func TestRefusals(t *testing.T) {
	l := newLab(t)
	volume, err := l.Volumes.FromName(l.ctx(), "data", &modal.VolumeFromNameParams{CreateIfMissing: true})
	l.must("volume", err)
	for _, c := range []struct {
		params modal.SandboxCreateParams
		want   codes.Code
		says   string
	}{
		{modal.SandboxCreateParams{Timeout: 25 * time.Hour}, codes.InvalidArgument, "timeout must be at most 86400 seconds"},
		{modal.SandboxCreateParams{CIDRAllowlist: []string{"not-an-ip/8"}}, codes.InvalidArgument, "Invalid CIDR: not-an-ip/8"},
		{modal.SandboxCreateParams{Cloud: "invalid-cloud"}, codes.InvalidArgument, "invalid-cloud"},
		{modal.SandboxCreateParams{Regions: []string{"invalid-region"}}, codes.InvalidArgument, "invalid-region"},
		{modal.SandboxCreateParams{EncryptedPorts: []int{80}, UnencryptedPorts: []int{80}}, codes.InvalidArgument, "Port 80"},
		{modal.SandboxCreateParams{Volumes: map[string]*modal.Volume{"/a": volume, "/b": volume}}, codes.InvalidArgument, "multiple locations"},
		{modal.SandboxCreateParams{Volumes: map[string]*modal.Volume{"/a": {VolumeID: "vo-none"}}}, codes.NotFound, "vo-none"},
		{modal.SandboxCreateParams{GPU: "T4"}, codes.Unimplemented, "GPUs"},
	} {
		_, err := l.Sandboxes.Create(l.ctx(), l.app, l.Images.FromRegistry(l.busybox, nil), &c.params)
		wantCode(t, c.says, err, c.want, c.says)
	}
	_, err = l.Sandboxes.FromID(l.ctx(), "sb-none")
	if !errors.As(err, &modal.NotFoundError{}) {
		t.Errorf("missing sandbox: %v", err)
	}
	_, err = l.raw.ContainerExec(l.ctx(), pb.ContainerExecRequest_builder{TaskId: "ta-none", Command: []string{"true"}}.Build())
	wantCode(t, "task that is not there", err, codes.NotFound, "ta-none")
	_, err = l.raw.FunctionCreate(l.ctx(), &pb.FunctionCreateRequest{})
	wantCode(t, "what is not served", err, codes.Unimplemented, "")
}

// The server passes resource limits and network access to the backend.
func TestLimits(t *testing.T) {
	testenv.Need(t, testenv.Root)
	l := newLab(t)
	sb := l.create(&modal.SandboxCreateParams{CPU: 0.5, CPULimit: 1, MemoryMiB: 64, MemoryLimitMiB: 128, BlockNetwork: true, Workdir: "/made/here", Command: []string{"sh", "-c", "pwd; cat"}})
	if _, err := l.raw.SandboxGetTaskId(l.ctx(), pb.SandboxGetTaskIdRequest_builder{SandboxId: sb.SandboxID}.Build()); err != nil {
		t.Fatal(err)
	}
	all, err := l.backend.List(l.ctx(), atoll.Filter{})
	if len(all) != 1 || err != nil {
		t.Fatalf("%d sandboxes, %v", len(all), err)
	}
	spec := all[0].Spec
	if spec.Resources.CPUs != 1 || spec.Resources.Memory != 128<<20 || spec.Network.Mode != atoll.NetworkNone {
		t.Errorf("resources %+v, network %+v", spec.Resources, spec.Network)
	}
	usage, err := l.raw.SandboxGetResourceUsage(l.ctx(), pb.SandboxGetResourceUsageRequest_builder{SandboxId: sb.SandboxID}.Build())
	if err != nil || usage.GetCpuCoreNanosecs() == 0 || usage.GetMemGibNanosecs() == 0 {
		t.Errorf("usage %v, %v", usage, err)
	}
	l.must("close stdin", sb.Stdin.Close())
	if out, err := io.ReadAll(sb.Stdout); string(out) != "/made/here\n" || err != nil {
		t.Errorf("workdir %q, %v", out, err)
	}
	ctx, cancel := context.WithTimeout(l.ctx(), testTimeout)
	defer cancel()
	if code, err := sb.Wait(ctx); code != 0 || err != nil {
		t.Errorf("wait: %d, %v", code, err)
	}
}
