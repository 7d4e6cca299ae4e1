// Package config turns flags, environment, a YAML file and defaults into one
// Options value, and says for every setting where its value came from.
//
// One table (see Settings) drives all of it: path, flag, environment name,
// default, check and help text of a setting stand in one line. Flags beat the
// environment, the environment beats the file, the file beats the defaults.
//
// A key of the file that is not in the table is refused with its name, the file
// and the line; combinations that cannot work are refused by Validate before
// anything is opened. The package opens nothing but the file it is told to read,
// starts no goroutine and logs nothing.
package config
