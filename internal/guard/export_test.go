package guard

// SetMainModule sets the path of the main module, until the returned function is called.
func SetMainModule(path string) func() {
	old := mainModule
	mainModule = func() string { return path }
	return func() { mainModule = old }
}
