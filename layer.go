package atoll

// A ProviderLayer is embedded by a layer, which overrides the methods that it changes. It
// forwards the methods of Provider, and As finds the optional abilities of the wrapped
// provider behind it. Sandboxes that the layer returns should embed SandboxLayer.
type ProviderLayer struct{ Provider }

// Unwrap returns the wrapped provider.
func (l ProviderLayer) Unwrap() Provider { return l.Provider }

// A SandboxLayer is to a Sandbox what ProviderLayer is to a Provider.
type SandboxLayer struct{ Sandbox }

// Unwrap returns the wrapped sandbox.
func (l SandboxLayer) Unwrap() Sandbox { return l.Sandbox }

// A ProcessLayer is to a Process what ProviderLayer is to a Provider.
type ProcessLayer struct{ Process }

// Unwrap returns the wrapped process.
func (l ProcessLayer) Unwrap() Process { return l.Process }

// As finds an optional ability of a Provider, Sandbox or Process: the outermost of x and the
// values that it wraps that has the type T. A layer that must see the calls of an ability
// implements it. X is one of the three interfaces, not the type of an implementation.
func As[T, X any](x X) (T, bool) {
	for {
		if t, ok := any(x).(T); ok {
			return t, true
		}
		layer, ok := any(x).(interface{ Unwrap() X })
		if !ok {
			var none T
			return none, false
		}
		x = layer.Unwrap()
	}
}
