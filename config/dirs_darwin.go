package config

func (e *environment) stateHome() string {
	return e.home("Library", "Application Support", "subspan", "state")
}

// The configuration is where people look for that of command-line programs.
func (e *environment) configHome() string { return e.home(".config", "subspan") }

func (e *environment) dataHome() string {
	return e.home("Library", "Application Support", "subspan", "data")
}
