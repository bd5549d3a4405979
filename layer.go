package atoll

// A ProviderLayer is the base of a layer, which embeds it and overrides the methods that it
// changes. ProviderLayer forwards all methods of Provider, and lets As find the optional
// abilities of the wrapped provider. Sandboxes that the layer returns should embed SandboxLayer.
type ProviderLayer struct{ Provider }

// Unwrap returns the wrapped provider.
func (l ProviderLayer) Unwrap() Provider { return l.Provider }

// A SandboxLayer is the base of a layer around a Sandbox; see ProviderLayer.
type SandboxLayer struct{ Sandbox }

// Unwrap returns the wrapped sandbox.
func (l SandboxLayer) Unwrap() Sandbox { return l.Sandbox }

// A ProcessLayer is the base of a layer around a Process; see ProviderLayer.
type ProcessLayer struct{ Process }

// Unwrap returns the wrapped process.
func (l ProcessLayer) Unwrap() Process { return l.Process }

// As finds the optional ability T of a Provider, Sandbox or Process. It returns the outermost
// value that implements T among x and the values that x wraps. A layer that must see the calls of
// an ability implements that ability. X is one of the three interfaces, not the type of an
// implementation.
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
