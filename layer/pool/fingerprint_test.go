package pool_test

import (
	"reflect"
	"slices"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/layer/pool"
)

// The fields of a Spec, by what the pool does with them.
var (
	given   = []string{"Name", "Labels", "TTL"}                         // set when the sandbox is claimed
	without = []string{"ID", "Cmd", "AutoRemove", "NoStart", "Secrets"} // no sandbox of a pool can have them
	same    = []string{"Project", "Provider", "Image", "Pull", "Env", "Workdir", "User", "TTY", "OpenStdin", "Workspace", "Mounts", "Resources", "Network",
		"Ports", "ReadOnlyRoot", "Cache", "CachePaths", "IdleStop", "IdleRemove", "Snapshot", "System"} // must be equal
)

// A new field of Spec must be in one of the lists: no caller may get a sandbox
// without something in its spec.
func TestEachSpecFieldIsHandled(t *testing.T) {
	none := pool.Fingerprint(&atoll.Spec{})
	typ := reflect.TypeFor[atoll.Spec]()
	for i := range typ.NumField() {
		name := typ.Field(i).Name
		spec := &atoll.Spec{}
		fillIn(t, reflect.ValueOf(spec).Elem().Field(i))
		changes, unfit := pool.Fingerprint(spec) != none, pool.Unfit(spec) != ""
		switch {
		case slices.Contains(without, name):
			if !unfit {
				t.Errorf("a pool accepts %s", name)
			}
		case slices.Contains(same, name):
			if !changes {
				t.Errorf("%s is not in the fingerprint", name)
			}
		case slices.Contains(given, name):
			if unfit || changes != (name == "TTL") {
				t.Errorf("%s excludes a sandbox of a pool", name)
			}
		default:
			t.Errorf("Spec.%s is new: add it to given, without or same", name)
		}
	}
	if n := len(given) + len(without) + len(same); n != typ.NumField() {
		t.Errorf("%d fields are listed, Spec has %d", n, typ.NumField())
	}
	short, long := &atoll.Spec{TTL: 1e9}, &atoll.Spec{TTL: 2e9}
	if pool.Fingerprint(short) != pool.Fingerprint(long) {
		t.Error("specs with different TTLs have different fingerprints")
	}
}

// Each part of a field changes the fingerprint.
func TestFingerprintHasParts(t *testing.T) {
	none := pool.Fingerprint(&atoll.Spec{})
	for _, name := range []string{"Resources", "Network", "Workspace", "System"} {
		typ, _ := reflect.TypeFor[atoll.Spec]().FieldByName(name)
		for i := range typ.Type.NumField() {
			spec := &atoll.Spec{}
			fillIn(t, reflect.ValueOf(spec).Elem().FieldByName(name).Field(i))
			if pool.Fingerprint(spec) == none {
				t.Errorf("%s.%s is not in the fingerprint", name, typ.Type.Field(i).Name)
			}
		}
	}
	for _, name := range []string{"Mounts", "Ports", "TTY"} {
		elem := func(spec *atoll.Spec) reflect.Value {
			v := reflect.ValueOf(spec).Elem().FieldByName(name)
			if v.Kind() == reflect.Pointer {
				v.Set(reflect.New(v.Type().Elem()))
				return v.Elem()
			}
			v.Set(reflect.MakeSlice(v.Type(), 1, 1))
			return v.Index(0)
		}
		bare := &atoll.Spec{}
		typ := elem(bare).Type()
		for i := range typ.NumField() {
			spec := &atoll.Spec{}
			fillIn(t, elem(spec).Field(i))
			if pool.Fingerprint(spec) == pool.Fingerprint(bare) {
				t.Errorf("%s.%s is not in the fingerprint", name, typ.Field(i).Name)
			}
		}
	}
}

// fillIn sets v to any value but zero.
func fillIn(t *testing.T, v reflect.Value) {
	t.Helper()
	switch v.Kind() {
	case reflect.String:
		v.SetString("x")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(7)
	case reflect.Uint16:
		v.SetUint(7)
	case reflect.Float64:
		v.SetFloat(7)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fillIn(t, v.Index(0))
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(reflect.ValueOf("k"), reflect.ValueOf("v"))
	case reflect.Struct:
		fillIn(t, v.Field(0))
	default:
		t.Fatalf("field of kind %s: add a case to fillIn", v.Kind())
	}
}
