package auth_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/server/auth"
)

func TestParseAccount(t *testing.T) {
	for text, want := range map[string]string{
		"ann":                     "ann",
		"ann:admin":               "ann",
		"ann:user":                "ann",
		"ann:project:web":         "ann:project:web",
		"ann:project:web+api":     "ann:project:api+web",
		"":                        "",
		"ann:":                    "",
		"an n":                    "",
		"ann:project":             "",
		"ann:project:":            "",
		"ann:project:web,api":     "",
		"ann:project:web+":        "",
		"ann:user:web":            "",
		"ann:project:web:and:web": "",
	} {
		a, err := auth.ParseAccount(text)
		switch {
		case want == "" && atoll.KindOf(err) != atoll.ErrInvalid:
			t.Errorf("%q is %+v, %v, want an error", text, a, err)
		case want != "" && (err != nil || a.Identity() != want):
			t.Errorf("%q is %q, %v, want %q", text, a.Identity(), err, want)
		}
	}
}

func TestPermissions(t *testing.T) {
	bounded := auth.Account{Name: "ann", Role: auth.RoleProject, Projects: []string{"web", "api"}}
	lost := auth.Account{Name: "ann", Role: auth.RoleProject}
	for _, tt := range []struct {
		account auth.Account
		project string
		may     bool
		or      string
	}{
		{auth.Account{}, "web", true, "web"},
		{auth.Account{Role: "user"}, "web", true, "web"},
		{bounded, "api", true, "api"},
		{bounded, "other", false, "web"},
		{bounded, "", false, "web"},
		{lost, "web", false, "web"},
	} {
		if may, or := tt.account.CanUse(tt.project), tt.account.ProjectOr(tt.project); may != tt.may || or != tt.or {
			t.Errorf("%+v may use %q: %v, else %q; want %v and %q", tt.account, tt.project, may, or, tt.may, tt.or)
		}
	}
	if ctx := auth.WithAccount(context.Background(), bounded); auth.HasTrustedSpec(ctx) || !auth.HasTrustedSpec(auth.WithTrustedSpec(ctx)) {
		t.Error("HasTrustedSpec does not reflect WithTrustedSpec")
	}
}

func TestRetryAfter(t *testing.T) {
	err := atoll.E("create", "x", atoll.ErrExhausted, atoll.WithRetryAfter(errors.New("full"), 3*time.Second))
	if after, known := atoll.RetryAfter(err); after != 3*time.Second || !known || err.Error() != "create x: full" || !errors.Is(err, atoll.ErrExhausted) {
		t.Errorf("%v: %s, %v", err, after, known)
	}
	for _, err := range []error{nil, errors.New("x"), atoll.E("create", "x", atoll.ErrExhausted, nil)} {
		if after, known := atoll.RetryAfter(err); after != 0 || known {
			t.Errorf("%v: %s, %v", err, after, known)
		}
	}
}
