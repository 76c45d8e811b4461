"""What a user asked of Paceline, as the command that starts another engine (docs/engines.md)."""

from paceline.export.asked import Asked as Asked
from paceline.export.engines import command as command
from paceline.export.launching import launch as launch
from paceline.export.launching import shown as shown
