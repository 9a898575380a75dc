//go:build !windows && !darwin

package config

func (e *environment) stateHome() string  { return e.home(".local", "state", "subspan") }
func (e *environment) configHome() string { return e.home(".config", "subspan") }
func (e *environment) dataHome() string   { return e.home(".local", "share", "subspan") }
