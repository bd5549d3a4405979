package conversation_test

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent/conversation"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/internal/testing/tests3"
	"github.com/seed46cd37a8/atoll/storage/filesync"
	"github.com/seed46cd37a8/atoll/storage/objectstore/s3"
	"github.com/seed46cd37a8/atoll/storage/store"
	"github.com/seed46cd37a8/atoll/storage/store/dynamo"
)

func TestMain(m *testing.M) {
	tests3.Isolate()
	os.Exit(m.Run())
}

// openTables opens a store in DynamoDB.
func openTables(t testing.TB, endpoint string) store.Conversations {
	t.Helper()
	s, err := dynamo.Open(t.Context(), dynamo.Options{
		Endpoint: endpoint, Region: "us-east-1", Credentials: func(context.Context) (dynamo.Credentials, error) {
			return dynamo.Credentials{AccessKey: "testak", SecretKey: "testsecret1"}, nil
		},
	})
	if err == nil {
		err = s.EnsureTables(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// inS3 has the services of a lab keep files in S3.
func inS3(t testing.TB, o conversation.Options, endpoint string) conversation.Options {
	t.Helper()
	b, err := s3.Open(t.Context(), s3.Options{
		Bucket: tests3.Bucket, Endpoint: endpoint, PathStyle: true, Backoff: 10 * time.Millisecond, Attempts: 2,
		Credentials: func(context.Context) (s3.Credentials, error) {
			return s3.Credentials{AccessKey: tests3.AccessKey, SecretKey: tests3.SecretKey}, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	o.Store = "s3://" + tests3.Bucket
	o.Open = func(_ context.Context, at string) (*conversation.Place, error) {
		prefix := strings.TrimPrefix(at, o.Store+"/")
		r, err := filesync.New(b, prefix, filesync.Options{})
		return &conversation.Place{Remote: r, Bucket: b, Prefix: prefix}, err
	}
	return o
}

// Two machines, with conversations in DynamoDB and files in S3: one is lost, the other
// goes on.
func TestTwoMachines(t *testing.T) {
	tables, objects := testenv.DynamoDB(t), tests3.Versity(t)
	first, second := newLab(t), newLab(t)
	for _, l := range []*lab{first, second} {
		l.store = openTables(t, tables)
		l.agent.ContinueIf = "" // the directory has another path there
		l.agent.Env = append(l.agent.Env, "TESTAGENT_CONTINUE=new")
	}
	lease := max(4*time.Second, testenv.Scale(3*time.Second))
	v, kill := first.killed(inS3(t, first.options(), objects).WithLease(lease))
	w := second.openWith(withServer(inS3(t, second.options(), objects), "two").WithLease(lease))
	send(t, v, ask("say one\nrun echo data > file"))
	if text := messages(t, w); !strings.Contains(text, "assistant: one") {
		t.Errorf("the other server does not see it: %s", text)
	}
	events, err := v.Send(t.Context(), ask("say begun\nsleep 1h"))
	if err != nil {
		t.Fatal(err)
	}
	_, err = w.Send(t.Context(), ask("say no"))
	wantKind(t, "a second turn", err, atoll.ErrConflict)
	hear(t, v, "begun")
	kill() // and with it its sandboxes, as far as the other one can tell
	for _, err := range events {
		if err != nil {
			wantKind(t, "the stream of who was killed", err, atoll.ErrUnavailable)
		}
	}
	settleHard(t, w)
	got := send(t, w, ask("say two\nrun cat file"))
	if !strings.HasSuffix(said(got), "two") {
		t.Errorf("events: %s", types(got))
	}
	text := messages(t, w)
	for _, want := range []string{"assistant: one", "user: say begun", "assistant: two", "completed data"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in %s", want, text)
		}
	}
}

// What S3 does not take is told, and the answer is as it would be; the next turn brings
// both.
func TestPushFails(t *testing.T) {
	l := newLab(t)
	proxy := tests3.NewProxy(t, tests3.Versity(t))
	v := l.openWith(inS3(t, l.options(), proxy.Endpoint))
	send(t, v, ask("run echo one > file"))
	before, err := v.Sandbox(t.Context(), sid)
	if err != nil {
		t.Fatal(err)
	}
	proxy.EveryNth(1, 503)
	got := send(t, v, ask("say fine\nrun echo two > file"))
	if last := got[len(got)-1]; !strings.HasSuffix(said(got), "fine") || last.FinishReason != "stop" {
		t.Errorf("events: %s, %+v", types(got), last)
	}
	x, err := v.Sandbox(t.Context(), sid)
	if err != nil || x.Meta.SyncError == "" || x.Meta.LastSync != before.Meta.LastSync {
		t.Errorf("the sandbox: %+v, %v", x.Meta, err)
	}
	if err := v.DeleteSandbox(t.Context(), sid); err == nil {
		t.Error("DeleteSandbox without a push has no error")
	}
	proxy.Set(nil)
	got = send(t, v, ask("run cat file")) // from the volume, which was kept
	if text := messages(t, v); !strings.Contains(text, "completed two") {
		t.Errorf("what could not be pushed is lost: %s, %s", types(got), text)
	}
	if x, err = v.Sandbox(t.Context(), sid); err != nil || x.Meta.SyncError != "" || x.Meta.LastSync < before.Meta.LastSync {
		t.Errorf("the sandbox: %+v, %v", x.Meta, err)
	}
}
