package conversation_test

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent"
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

// inS3 returns options with the object storage in S3.
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
	o.Open = func(_ context.Context, at string) (*conversation.Storage, error) {
		prefix := strings.TrimPrefix(at, o.Store+"/")
		r, err := filesync.New(b, prefix, filesync.Options{})
		return &conversation.Storage{Remote: r, Bucket: b, Prefix: prefix}, err
	}
	return o
}

// Two machines share conversations in DynamoDB and files in S3. After one is lost, the other
// continues.
func TestTwoMachines(t *testing.T) {
	tables, objects := testenv.DynamoDB(t), tests3.Versity(t)
	first, second := newFixture(t), newFixture(t)
	for _, fx := range []*fixture{first, second} {
		fx.store = openTables(t, tables)
		fx.agent.ContinueIf = "" // the path of the directory differs there
		fx.agent.Env = append(fx.agent.Env, "TESTAGENT_CONTINUE=new")
	}
	lease := max(4*time.Second, testenv.Scale(3*time.Second))
	v, kill := first.openKillable(inS3(t, first.serviceOptions(), objects).WithLease(lease))
	w := second.openServiceWith(withServer(inS3(t, second.serviceOptions(), objects), "two").WithLease(lease))
	sendPrompt(t, v, newPrompt("say one\nrun echo data > file"))
	if text := messageLines(t, w); !strings.Contains(text, "assistant: one") {
		t.Errorf("the other server does not see the turn: %s", text)
	}
	events, err := v.Send(t.Context(), newPrompt("say begun\nsleep 1h"))
	if err != nil {
		t.Fatal(err)
	}
	_, err = w.Send(t.Context(), newPrompt("say no"))
	wantKind(t, "a second turn", err, atoll.ErrConflict)
	waitForText(t, v, "begun")
	kill() // the other server cannot reach its sandboxes
	for _, err := range events {
		if err != nil {
			wantKind(t, "the stream of the killed server", err, atoll.ErrUnavailable)
		}
	}
	waitForTakeover(t, w)
	got := sendPrompt(t, w, newPrompt("say two\nrun cat file"))
	if !strings.HasSuffix(textOf(got), "two") {
		t.Errorf("events: %s", typesOf(got))
	}
	text := messageLines(t, w)
	for _, want := range []string{"assistant: one", "user: say begun", "assistant: two", "completed data"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in %s", want, text)
		}
	}
}

// If a push to S3 fails, the sandbox has the error, and the turn ends normally. The next turn
// pushes the files of both.
func TestPushFails(t *testing.T) {
	fx := newFixture(t)
	proxy := tests3.NewProxy(t, tests3.Versity(t))
	v := fx.openServiceWith(inS3(t, fx.serviceOptions(), proxy.Endpoint))
	sendPrompt(t, v, newPrompt("run echo one > file"))
	before, err := v.Sandbox(t.Context(), testSandbox)
	if err != nil {
		t.Fatal(err)
	}
	proxy.EveryNth(1, 503)
	got := sendPrompt(t, v, newPrompt("say fine\nrun echo two > file"))
	if last := got[len(got)-1]; !strings.HasSuffix(textOf(got), "fine") || last.FinishReason != "stop" {
		t.Errorf("events: %s, %+v", typesOf(got), last)
	}
	x, err := v.Sandbox(t.Context(), testSandbox)
	if err != nil || x.Meta.SyncError == "" || x.Meta.LastSync != before.Meta.LastSync {
		t.Errorf("the sandbox: %+v, %v", x.Meta, err)
	}
	if err := deleteSandbox(t.Context(), v); err == nil {
		t.Error("DeleteSandbox without a push has no error")
	}
	if _, err := v.DeleteSandbox(t.Context(), testSandbox, agent.DeleteOptions{Force: true}); err != nil {
		t.Errorf("DeleteSandbox by force: %v", err)
	}
	proxy.Set(nil)
	got = sendPrompt(t, v, newPrompt("run cat file")) // from the volume, which was retained
	if text := messageLines(t, v); !strings.Contains(text, "completed two") {
		t.Errorf("the files of the failed push are lost: %s, %s", typesOf(got), text)
	}
	if x, err = v.Sandbox(t.Context(), testSandbox); err != nil || x.Meta.SyncError != "" || x.Meta.LastSync < before.Meta.LastSync {
		t.Errorf("the sandbox: %+v, %v", x.Meta, err)
	}
}
