package authz_test

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/layer/authz"
	"github.com/seed46cd37a8/atoll/layer/registry"
	"github.com/seed46cd37a8/atoll/layer/session"
	"github.com/seed46cd37a8/atoll/layer/workspace"
	"github.com/seed46cd37a8/atoll/provider/mock"
	"github.com/seed46cd37a8/atoll/provider/providertest"
	"github.com/seed46cd37a8/atoll/server/api"
	apiclient "github.com/seed46cd37a8/atoll/server/api/client"
	"github.com/seed46cd37a8/atoll/server/auth"
	"github.com/seed46cd37a8/atoll/storage/store/sqlite"
)

func TestMain(m *testing.M) { testenv.VerifyTestMain(m) }

func newMock(t testing.TB, dir string) atoll.Provider {
	t.Helper()
	p, err := mock.New(mock.Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// newServed returns a client of p with the account. Its Close closes p.
func newServed(t testing.TB, p atoll.Provider, account auth.Account) atoll.Provider {
	t.Helper()
	h, err := api.NewHandler(p, api.Options{Tokens: map[string]auth.Account{"token": account}})
	if err != nil {
		t.Fatal(err)
	}
	pipe := api.NewPipe()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- api.Serve(ctx, h, pipe) }()
	c, err := apiclient.New(t.Context(), apiclient.Options{Dial: pipe.Dial, Token: "token"})
	if err != nil {
		t.Fatal(err)
	}
	return wired{c, sync.OnceValue(func() error {
		cancel()
		return errors.Join(<-done, p.Close())
	})}
}

type wired struct {
	*apiclient.Client
	end func() error
}

func (w wired) Close() error { return errors.Join(w.Client.Close(), w.end()) }

// A caller with auth.RoleProject gets all promises of a provider, except those that concern all
// projects. Package authz changes specs and hides other projects. It wraps no process and
// no file, and a sandbox only to guard its network, so the suite leaves those groups out.
func TestConformance(t *testing.T) {
	of := auth.Account{Name: "team", Role: auth.RoleProject, Projects: suiteProjects}
	open := func(t *testing.T) atoll.Provider {
		dir := t.TempDir()
		file := filepath.Join(dir, "atoll.db")
		var p atoll.Provider = registry.New(newMock(t, filepath.Join(dir, "mock")), sqlite.New(file), registry.Options{Server: true})
		p = session.New(p, sqlite.New(file), session.Options{})
		return newServed(t, authz.New(p, authz.Options{}), of)
	}
	const admins = "is about all projects, or leads out of one: it is for admins"
	if testing.Short() {
		providertest.Run(t, open, providertest.Only("create", "watch"))
		return
	}
	opts := []providertest.Option{providertest.Only("create", "volumes", "images", "watch", "errors", "caps")}
	for _, name := range []string{
		"images/RemoveImage refuses an invalid name",
		"caps/Create refuses a feature of a spec exactly if its cap is missing",
		"caps/the stores work exactly if their caps are set",
	} {
		opts = append(opts, providertest.Except(name, admins))
	}
	providertest.Run(t, open, opts...)
}

// suiteProjects are the projects in which the suite creates sandboxes.
var suiteProjects = []string{atoll.DefaultProject, "one", "two", "other", "mine", "wishes", "project-1", "third"}

// A project cannot change the network of its sandbox, whose agent may have its key. Others can.
func TestNetworkOfSandbox(t *testing.T) {
	p := authz.New(networked{atoll.ProviderLayer{Provider: newMock(t, t.TempDir())}}, authz.Options{})
	defer p.Close()
	sb, err := p.Create(withProjects(t, "one"), &atoll.Spec{Project: "one"})
	if err != nil {
		t.Fatal(err)
	}
	found, err := p.Get(withProjects(t, "one"), sb.ID())
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range []atoll.Sandbox{sb, found} {
		wantKind(t, "UpdateNetwork", atoll.UpdateNetwork(withProjects(t, "one"), one, atoll.NetworkChange{}), atoll.ErrDenied)
	}
	asAdmin, err := p.Get(t.Context(), sb.ID())
	if err != nil {
		t.Fatal(err)
	}
	if err := atoll.UpdateNetwork(t.Context(), asAdmin, atoll.NetworkChange{}); err != nil {
		t.Errorf("UpdateNetwork of an admin: %v", err)
	}
}

// A networked is a provider whose sandboxes have a network that changes.
type networked struct{ atoll.ProviderLayer }

func (p networked) Info() atoll.Info { return p.Provider.Info() }

func (p networked) Create(ctx context.Context, spec *atoll.Spec) (atoll.Sandbox, error) {
	sb, err := p.Provider.Create(ctx, spec)
	return networkedSandbox{atoll.SandboxLayer{Sandbox: sb}}, err
}

func (p networked) Get(ctx context.Context, id string) (atoll.Sandbox, error) {
	sb, err := p.Provider.Get(ctx, id)
	return networkedSandbox{atoll.SandboxLayer{Sandbox: sb}}, err
}

type networkedSandbox struct{ atoll.SandboxLayer }

func (s networkedSandbox) Status(ctx context.Context) (atoll.Status, error) {
	st, err := s.Sandbox.Status(ctx)
	st.Caps.NetworkUpdate = true
	return st, err
}

func (s networkedSandbox) UpdateNetwork(context.Context, atoll.NetworkChange) error { return nil }

func TestLayer(t *testing.T) {
	providertest.CheckLayer(t, func(p atoll.Provider) atoll.Provider { return authz.New(p, authz.Options{}) })
}

// withProjects returns a context of an account restricted to projects.
func withProjects(t testing.TB, projects ...string) context.Context {
	return auth.WithAccount(t.Context(), auth.Account{Name: "team", Role: auth.RoleProject, Projects: projects})
}

func wantKind(t *testing.T, what string, err error, want atoll.Kind) {
	t.Helper()
	if atoll.KindOf(err) != want {
		t.Errorf("%s: %v, want %q", what, err, want)
	}
}

// Objects of another project are not found, with the same error as objects that do not exist.
// Naming another project is denied.
func TestOthers(t *testing.T) {
	var denied []string
	p := authz.New(newMock(t, t.TempDir()), authz.Options{Denied: func(_ context.Context, op, project, id string) {
		denied = append(denied, op+" "+project+" "+id)
	}})
	defer p.Close()
	theirs, err := p.Create(t.Context(), &atoll.Spec{Name: "web", Project: "theirs"})
	if err != nil {
		t.Fatal(err)
	}
	ctx := withProjects(t, "ours", "also")
	ours, err := p.Create(ctx, &atoll.Spec{Name: "web"})
	if err != nil {
		t.Fatal(err)
	}
	if st, err := ours.Status(ctx); err != nil || st.Spec.Project != "ours" {
		t.Errorf("without a project the caller gets one in %q, %v, want the first of theirs", st.Spec.Project, err)
	}
	nobody := atoll.NewID()
	_, foreign := p.Get(ctx, theirs.ID())
	_, missing := p.Get(ctx, nobody)
	wantKind(t, "Get", foreign, atoll.ErrNotFound)
	if want := "get " + theirs.ID() + ": sandbox not found"; foreign.Error() != want || missing.Error() != "get "+nobody+": sandbox not found" {
		t.Errorf("another project's: %v; one that is not there: %v", foreign, missing)
	}
	for what, err := range map[string]error{
		"Create in another project": errorOf(p.Create(ctx, &atoll.Spec{Project: "theirs"})),
		"List of another project":   errorOf(p.List(ctx, atoll.Filter{Project: "theirs"})),
		"Resolve in another":        errorOf(atoll.Resolve(ctx, p, "theirs", "web")),
		"RemoveProject of another":  atoll.RemoveProject(ctx, p, "theirs"),
		"Volumes of another":        errorOf(atoll.Volumes(ctx, p, "theirs")),
		"RemoveVolume of another":   atoll.RemoveVolume(ctx, p, "theirs", "data-"+theirs.ID()),
		"Workspaces of another":     errorOf(workspace.List(ctx, p, "theirs")),
		"AddWorkspace":              errorOf(workspace.Add(ctx, p, &workspace.Spec{Name: "w", Source: "/"}, nil)),
		"Sessions of another":       errorOf(session.List(ctx, p, "theirs")),
		"CloseSession of another":   session.Close(ctx, p, "theirs", "session_x_sandbox"),
		"Images":                    errorOf(atoll.Images(ctx, p)),
		"RemoveImage":               atoll.RemoveImage(ctx, p, "x", false),
		"PruneImages":               errorOf(atoll.PruneImages(ctx, p, atoll.PruneOptions{})),
		"Reconcile":                 errorOf(registry.Reconcile(ctx, p, registry.ReconcileOptions{})),
	} {
		wantKind(t, what, err, atoll.ErrDenied)
	}
	// By name, only in the caller's own project.
	sb, err := atoll.Resolve(ctx, p, "", "web")
	if err != nil || sb.ID() != ours.ID() {
		t.Errorf("a name that two projects have: %v, %v, want our own", sb, err)
	}
	_, err = atoll.Resolve(ctx, p, "", theirs.ID())
	wantKind(t, "another's id as a name", err, atoll.ErrNotFound)
	all, err := p.List(ctx, atoll.Filter{})
	if err != nil || len(all) != 1 || all[0].ID != ours.ID() {
		t.Errorf("List is %v, %v, want ours", all, err)
	}
	for ev, err := range p.Watch(ctx) {
		if err != nil || ev.Type == atoll.EventSynced {
			break
		}
		if ev.Status.ID != ours.ID() {
			t.Errorf("Watch shows %s", ev.Status.ID)
		}
	}
	if !slices.Contains(denied, "get theirs "+theirs.ID()) || !slices.Contains(denied, "create theirs ") {
		t.Errorf("denied calls: %q", denied)
	}
	if sb, err := p.Get(withProjects(t, "theirs"), theirs.ID()); err != nil || sb.ID() != theirs.ID() {
		t.Errorf("whose it is: %v", err)
	}
	if err := atoll.RemoveProject(ctx, p, "ours"); err != nil {
		t.Errorf("RemoveProject of our own: %v", err)
	}
}

func errorOf[T any](_ T, err error) error { return err }

// Specs that reach beyond a project require an admin, or auth.WithTrustedSpec.
func TestEscapes(t *testing.T) {
	p := authz.New(newMock(t, t.TempDir()), authz.Options{Refuse: func(_ context.Context, spec *atoll.Spec) error {
		if spec.Provider == "local" {
			return atoll.Errorf("create", "", atoll.ErrDenied, "local has no walls")
		}
		return nil
	}})
	defer p.Close()
	ctx := withProjects(t, "ours")
	network := func(mode atoll.NetworkMode, name string, allow ...string) atoll.Spec {
		return atoll.Spec{Network: atoll.Network{Mode: mode, Name: name, Allow: allow}}
	}
	for what, spec := range map[string]atoll.Spec{
		"a directory of the machine": {Mounts: []atoll.Mount{{Type: atoll.MountBind, Source: "/etc", Target: "/x"}}},
		"a file as the image":        {Image: "/var/lib/image"},
		"a layout as the image":      {Image: "oci:/var/lib/image"},
		"an archive as the image":    {Image: "docker-archive:/x.tar"},
		"a source":                   {Workspace: atoll.WorkspaceRef{Source: "/srv/repo"}},
		"a port of the machine's":    {Network: atoll.Network{Mode: atoll.NetworkOn}, Ports: []atoll.Port{{Port: 80, Publish: true, HostPort: 8080}}},
		"a network of the backend's": network(atoll.NetworkNamed, "bridge2"),
		"what is refused by default": network(atoll.NetworkOn, "", "10.0.0.0/8"),
		"an address":                 network(atoll.NetworkEgress, "", "10.1.2.3"),
		"an address with a port":     network(atoll.NetworkEgress, "", "10.1.2.3:443"),
		"requests to a name":         network(atoll.NetworkEgress, "", "GET db.example.com/x"),
		"a redirect":                 {Network: atoll.Network{Mode: atoll.NetworkEgress, Rules: []atoll.NetworkRule{{Match: "*.example.com", Redirect: "http://10.0.0.1"}}}},
		"a variable of the server": {
			Network: atoll.Network{Mode: atoll.NetworkEgress}, Secrets: []atoll.Secret{{Name: "KEY", Hosts: []string{"a.example"}, Source: "env:HOME"}},
		},
		"a file of the server": {
			Network: atoll.Network{Mode: atoll.NetworkEgress}, Secrets: []atoll.Secret{{Name: "KEY", Hosts: []string{"a.example"}, Source: "file:/etc/shadow"}},
		},
		"a store of the server": {
			Network: atoll.Network{Mode: atoll.NetworkEgress}, Secrets: []atoll.Secret{{Name: "KEY", Hosts: []string{"a.example"}, Source: "vault:secret/ci#token"}},
		},
		"a name": network(atoll.NetworkEgress, "", "example.com"),
	} {
		_, err := p.Create(ctx, &spec)
		wantKind(t, what, err, atoll.ErrDenied)
		_, err = atoll.Reserve(ctx, p, &spec)
		wantKind(t, what+", reserved", err, atoll.ErrDenied)
		wantKind(t, what+", prepared", atoll.Prepare(ctx, p, &spec, nil), atoll.ErrDenied)
		_, err = session.Open(ctx, p, &session.Spec{Scope: session.Scope{Kind: session.ScopeSession, ID: "x"}, Sandbox: spec})
		wantKind(t, what+", in a session", err, atoll.ErrDenied)
		if _, err := p.Create(t.Context(), &spec); atoll.KindOf(err) == atoll.ErrDenied {
			t.Errorf("%s, by an admin: %v", what, err)
		}
		if _, err := p.Create(auth.WithTrustedSpec(ctx), &spec); atoll.KindOf(err) == atoll.ErrDenied {
			t.Errorf("%s, vouched for: %v", what, err)
		}
	}
	_, err := p.Create(auth.WithTrustedSpec(ctx), &atoll.Spec{Project: "theirs"})
	wantKind(t, "another project, vouched for", err, atoll.ErrDenied)
	_, err = p.Create(auth.WithTrustedSpec(ctx), &atoll.Spec{Provider: "local"})
	wantKind(t, "a provider that is refused", err, atoll.ErrDenied)
	spec := network(atoll.NetworkEgress, "", "*.example.com")
	if err := atoll.Prepare(ctx, p, &spec, nil); atoll.KindOf(err) == atoll.ErrDenied {
		t.Errorf("a wildcard: %v", err)
	}
	spec = network(atoll.NetworkEgress, "", "npm", "GET *.example.com/x")
	spec.Secrets = []atoll.Secret{{Name: "KEY", Hosts: []string{"a.example"}, Value: "x"}}
	if err := atoll.Prepare(ctx, p, &spec, nil); atoll.KindOf(err) == atoll.ErrDenied {
		t.Errorf("a set, requests to a wildcard, and a value: %v", err)
	}
	spec = atoll.Spec{Network: atoll.Network{Mode: atoll.NetworkOn}, Ports: []atoll.Port{{Port: 80, Publish: true}}}
	if err := atoll.Prepare(ctx, p, &spec, nil); atoll.KindOf(err) == atoll.ErrDenied {
		t.Errorf("a port that the machine chooses: %v", err)
	}
}
