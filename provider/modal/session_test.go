//go:build linux

package modal_test

import (
	"strings"
	"testing"

	pb "github.com/modal-labs/libmodal/modal-go/proto/modal_proto"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/teststore"
	"github.com/seed46cd37a8/atoll/layer/session"
)

// If Modal has ended the sandbox of a session, the next use creates it again, and reports what
// is left.
func TestSessionGoesOn(t *testing.T) {
	p := provider(t)
	s := session.New(reopen(t, p), teststore.Open(t.TempDir()), session.Options{})
	defer s.Close()
	spec := &session.Spec{Scope: session.Scope{Kind: session.ScopeWorkflow, ID: "w"}}
	open := func(want session.Opening) (session.OpenResult, atoll.Sandbox) {
		t.Helper()
		o, err := session.Open(t.Context(), s, spec)
		if err != nil {
			t.Fatal(err)
		}
		if o.Opening != want {
			t.Errorf("it is %s (%s), want %s", o.Opening, o.Note, want)
		}
		sb, err := s.Get(t.Context(), o.Sandbox)
		if err != nil {
			t.Fatal(err)
		}
		return o, sb
	}
	before, sb := open(session.OpeningMade)
	says(t, sb, "echo work > /work/file; echo root > /file")
	if err := theLab.server.Kill(instanceOf(t, p, sb.ID()), pb.GenericResult_GENERIC_STATUS_TERMINATED, ""); err != nil {
		t.Fatal(err)
	}
	after, sb := open(session.OpeningRestarted)
	if after.Sandbox != before.Sandbox || !strings.Contains(after.Note, "the files in its work directory and volumes are intact; all other files and its processes are gone") {
		t.Errorf("it has sandbox %s (%s), and had %s", after.Sandbox, after.Note, before.Sandbox)
	}
	if got := says(t, sb, "cat /work/file; cat /file || echo gone"); got != "work\ngone\n" {
		t.Errorf("it has %q", got)
	}
	open(session.OpeningFound)
}
