package config

// Mock has the settings of the provider mock; there are none yet.
type Mock struct{}
