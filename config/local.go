package config

// Local has the settings of the provider local; there are none yet.
type Local struct{}
