package tools_test

import (
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll/agent/tools"
	"github.com/seed46cd37a8/atoll/internal/testing/testsession"
	"github.com/seed46cd37a8/atoll/layer/authz"
	"github.com/seed46cd37a8/atoll/layer/session"
	"github.com/seed46cd37a8/atoll/server/auth"
)

// Callers of different projects have separate sandboxes, under the same scope.
func TestProjects(t *testing.T) {
	inner := testsession.Open(t)
	k, err := tools.New(authz.New(inner, authz.Options{}), tools.Options{Project: "configured"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := k.Close(); err != nil {
			t.Error(err)
		}
	})
	caller := tools.Caller{Scope: session.Scope{Kind: session.ScopeSession, ID: "same"}}
	call := func(a auth.Account, name, input string) string {
		t.Helper()
		out, err := k.Call(auth.WithAccount(t.Context(), a), caller, name, []byte(input), nil)
		if err != nil {
			t.Errorf("%s by %s: %v", name, a.Name, err)
		}
		return string(out)
	}
	admin := auth.Account{}
	web := auth.Account{Name: "w", Role: auth.RoleProject, Projects: []string{"web"}}
	api := auth.Account{Name: "a", Role: auth.RoleProject, Projects: []string{"api", "configured"}}
	call(admin, "sandbox_fs_write", `{"path":"f","content":"of the admin"}`)
	call(web, "sandbox_fs_write", `{"path":"f","content":"of web"}`)
	for _, tt := range []struct {
		account auth.Account
		want    string
	}{{admin, "of the admin"}, {web, "of web"}, {api, "of the admin"}} { // the project that it belongs to
		if out := call(tt.account, "sandbox_fs_read", `{"path":"f"}`); !strings.Contains(out, tt.want) {
			t.Errorf("%s reads %s, want %s", tt.account.Name, out, tt.want)
		}
	}
	call(web, "sandbox_close", `{}`)
	all, err := session.List(t.Context(), inner, "")
	if err != nil || len(all) != 1 || all[0].Project != "configured" {
		t.Errorf("left are %+v, %v", all, err)
	}
	if out := call(admin, "sandbox_fs_read", `{"path":"f"}`); !strings.Contains(out, "of the admin") {
		t.Errorf("afterwards the admin reads %s", out)
	}
	if err := k.End(t.Context(), caller.Scope); err != nil {
		t.Fatal(err)
	}
}
