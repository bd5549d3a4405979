package providertest

import (
	"context"
	"errors"
	"io"
	"iter"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/layer/pool"
	"github.com/seed46cd37a8/atoll/layer/registry"
	"github.com/seed46cd37a8/atoll/layer/session"
	"github.com/seed46cd37a8/atoll/layer/workspace"
)

// The interfaces that a layer has to forward, for each type that implements them.
var (
	providerAbilities = abilityTypes(
		reflect.TypeFor[atoll.Provider](), reflect.TypeFor[atoll.Resolver](), reflect.TypeFor[atoll.Combiner](), reflect.TypeFor[atoll.Prober](),
		reflect.TypeFor[atoll.Preparer](), reflect.TypeFor[atoll.ProjectRemover](), reflect.TypeFor[atoll.ProjectLister](),
		reflect.TypeFor[atoll.VolumeStore](), reflect.TypeFor[atoll.ImageStore](), reflect.TypeFor[atoll.SnapshotStore](),
		reflect.TypeFor[atoll.ImageResolver](), reflect.TypeFor[atoll.SecretKeeper](), reflect.TypeFor[registry.Reconciler](), reflect.TypeFor[workspace.Manager](),
		reflect.TypeFor[session.Manager](), reflect.TypeFor[pool.Reporter](), reflect.TypeFor[atoll.Reserver]())
	sandboxAbilities = abilityTypes(
		reflect.TypeFor[atoll.Sandbox](), reflect.TypeFor[atoll.Filer](), reflect.TypeFor[atoll.Dialer](),
		reflect.TypeFor[atoll.Pauser](), reflect.TypeFor[atoll.Extender](), reflect.TypeFor[atoll.Snapshotter](), reflect.TypeFor[atoll.Meter](),
		reflect.TypeFor[atoll.Refuser](), reflect.TypeFor[atoll.NetworkLogger](), reflect.TypeFor[atoll.NetworkUpdater](), reflect.TypeFor[atoll.ProcessLister]())
	processAbilities = abilityTypes(reflect.TypeFor[atoll.Process](), reflect.TypeFor[atoll.Resizer]())
	fsAbilities      = abilityTypes(reflect.TypeFor[atoll.FS](), reflect.TypeFor[atoll.SubFS](), reflect.TypeFor[atoll.Editor]())
)

// abilityTypes returns its arguments as a slice.
func abilityTypes(types ...reflect.Type) []reflect.Type { return types }

// CheckLayer checks that wrap returns a layer that forwards every method of a provider, its sandboxes,
// processes and files, also the optional ones: each call must arrive, and its error must come back with
// its kind. except names methods that the layer answers itself, as "Provider.Resolve".
func CheckLayer(t *testing.T, wrap func(atoll.Provider) atoll.Provider, except ...string) {
	plan := FailCall(0)
	p := wrap(Faulty(bareProvider{}, plan))
	t.Cleanup(func() { p.Close() })
	sb, err := p.Create(context.Background(), &atoll.Spec{})
	if err != nil {
		t.Fatalf("Create: %v", err)
	}
	found, err := p.Get(context.Background(), bareID)
	if err != nil {
		t.Fatalf("Get: %v", err)
	}
	proc, err := sb.Exec(context.Background(), &atoll.Command{})
	if err != nil {
		t.Fatalf("Exec: %v", err)
	}
	again, err := sb.Process(context.Background(), "p")
	if err != nil {
		t.Fatalf("Process: %v", err)
	}
	for _, c := range []struct {
		kind  string
		value any
		types []reflect.Type
	}{
		{"Provider", p, providerAbilities},
		{"Sandbox", sb, sandboxAbilities},
		{"Sandbox", found, sandboxAbilities},
		{"Process", proc, processAbilities},
		{"Process", again, processAbilities},
		{"FS", atoll.Files(sb), fsAbilities},
		{"FS", atoll.SubFiles(atoll.Files(sb), "x"), fsAbilities},
	} {
		for _, typ := range c.types {
			ability := findAbility(c.value, typ)
			if !ability.IsValid() {
				t.Errorf("the layer's %s hides %v", c.kind, typ)
				continue
			}
			for i := range typ.NumMethod() {
				name := c.kind + "." + typ.Method(i).Name
				if !slices.Contains(except, name) && !slices.Contains(unrecorded, name) {
					checkForwarded(t, plan, name, ability.MethodByName(typ.Method(i).Name))
				}
			}
		}
	}
	want := bareProvider{}.Info().Caps
	want.Sessions = p.Info().Caps.Sessions // a layer can add sessions to any provider
	if got := p.Info().Caps; got != want {
		t.Errorf("Info().Caps = %+v, want %+v", got, want)
	}
	if sb.ID() != bareID || proc.ID() == "" {
		t.Errorf("the ids are %q and %q", sb.ID(), proc.ID())
	}
}

// findAbility returns the value that atoll.As finds: value, or the first value that it wraps, whichever
// implements typ first. It returns the zero Value if none does.
func findAbility(value any, typ reflect.Type) reflect.Value {
	for v := reflect.ValueOf(value); ; {
		if v.Type().Implements(typ) {
			return v
		}
		unwrap := v.MethodByName("Unwrap")
		if !unwrap.IsValid() {
			return reflect.Value{}
		}
		v = unwrap.Call(nil)[0].Elem()
	}
}

// unrecorded lists the methods that a Plan does not record.
var unrecorded = []string{"Provider.Info", "Provider.Close", "Sandbox.ID", "Sandbox.Files", "Process.ID"}

// checkForwarded calls the method, makes the wrapped provider fail that call, and checks that the error
// comes back.
func checkForwarded(t *testing.T, plan *Plan, name string, method reflect.Value) {
	t.Helper()
	plan.mu.Lock()
	before := len(plan.calls)
	plan.nth = before + 1
	plan.mu.Unlock()
	var args []reflect.Value
	for i := range method.Type().NumIn() {
		if i == method.Type().NumIn()-1 && method.Type().IsVariadic() {
			break
		}
		args = append(args, makeArgument(method.Type().In(i)))
	}
	err := findError(method.Call(args))
	if calls := plan.Calls()[before:]; !slices.Contains(calls, name) {
		t.Errorf("%s was not forwarded; the calls were %q", name, calls)
		return
	}
	if name != "Provider.Probe" && !errors.Is(err, atoll.ErrUnavailable) {
		t.Errorf("%s: error %v, want the one of the call that failed", name, err)
	}
}

// makeArgument returns a harmless argument of the type.
func makeArgument(typ reflect.Type) reflect.Value {
	switch typ {
	case reflect.TypeFor[context.Context]():
		return reflect.ValueOf(context.Background())
	case reflect.TypeFor[io.Reader]():
		return reflect.ValueOf(strings.NewReader(""))
	case reflect.TypeFor[io.Writer]():
		return reflect.ValueOf(io.Discard)
	case reflect.TypeFor[atoll.OpenOptions]():
		return reflect.ValueOf(atoll.OpenOptions{Read: true})
	case reflect.TypeFor[atoll.Duration]():
		return reflect.ValueOf(atoll.Duration(time.Second))
	}
	switch typ.Kind() {
	case reflect.Pointer:
		return reflect.New(typ.Elem())
	case reflect.String:
		return reflect.ValueOf("x").Convert(typ)
	}
	return reflect.Zero(typ)
}

// findError returns the error among the results of a method.
func findError(out []reflect.Value) error {
	for _, v := range out {
		if fs, ok := v.Interface().(atoll.FS); ok { // the FS from Sub returns errors only from its methods
			_, err := fs.Stat(context.Background(), "x")
			return err
		}
		if v.Type() == reflect.TypeFor[error]() {
			err, _ := v.Interface().(error)
			return err
		}
		if v.Kind() == reflect.Func && v.Type().CanSeq2() {
			for _, e := range v.Seq2() {
				if err, ok := e.Interface().(error); ok {
					return err
				}
			}
		}
	}
	return nil
}

// bareID is the id of every sandbox of a bareProvider.
const bareID = "6f9619ff8b864011b42d00cf4fc964ff"

// A bareProvider has no optional abilities and does nothing.
type bareProvider struct{}

func (bareProvider) Info() atoll.Info {
	return atoll.Info{Name: "bare", Isolation: atoll.IsolationNone, Caps: atoll.Caps{Durable: atoll.DurableNone}}
}
func (bareProvider) Create(context.Context, *atoll.Spec) (atoll.Sandbox, error) {
	return bareSandbox{}, nil
}
func (bareProvider) Get(context.Context, string) (atoll.Sandbox, error) { return bareSandbox{}, nil }
func (bareProvider) List(context.Context, atoll.Filter) ([]atoll.Status, error) {
	return nil, nil
}
func (bareProvider) Watch(context.Context) iter.Seq2[atoll.Event, error] {
	return func(yield func(atoll.Event, error) bool) { yield(atoll.Event{Type: atoll.EventSynced}, nil) }
}
func (bareProvider) Close() error { return nil }

// A bareSandbox is the sandbox of a bareProvider.
type bareSandbox struct{}

func (bareSandbox) ID() string { return bareID }
func (bareSandbox) Status(context.Context) (atoll.Status, error) {
	return atoll.Status{ID: bareID, State: atoll.StateRunning}, nil
}
func (bareSandbox) Start(context.Context) error               { return nil }
func (bareSandbox) Stop(context.Context, time.Duration) error { return nil }
func (bareSandbox) Exec(context.Context, *atoll.Command) (atoll.Process, error) {
	return bareProcess{}, nil
}
func (bareSandbox) Process(context.Context, string) (atoll.Process, error) {
	return bareProcess{}, nil
}
func (bareSandbox) Remove(context.Context, ...atoll.RemoveOption) error { return nil }

// A bareProcess is the process of a bareSandbox.
type bareProcess struct{}

func (bareProcess) ID() string                                      { return "p" }
func (bareProcess) Wait(context.Context) (atoll.Exit, error)        { return atoll.Exit{}, nil }
func (bareProcess) Signal(context.Context, atoll.Signal) error      { return nil }
func (bareProcess) Attach(context.Context, *atoll.Attachment) error { return nil }
