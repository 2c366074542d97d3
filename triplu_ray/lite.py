"""tinystories_lite: short children's stories from a small grammar, for quick starts and tests.

The text is deterministic, needs no download, and a small language model keeps learning from it for
minutes: spelling, then word order and agreement, then what a story states once and keeps (who is
she and who is he, whose ball is red, who is brave), then the sums of its counting.
"""

import re
from collections.abc import Sequence
from random import Random
from typing import TypeVar

END_OF_STORY = "<|endoftext|>"

_Option = TypeVar("_Option")


def _row(text: str) -> tuple[str, ...]:
    """Read cells separated by `:`."""
    return tuple(" ".join(cell.split()) for cell in text.split(":"))


def _table(text: str) -> tuple[tuple[str, ...], ...]:
    """Read rows separated by `;`."""
    return tuple(_row(row) for row in text.split(";"))


NAMES = {
    "she": _row("""Lily: Mia: Anna: Sue: Lucy: Ella: Rosie: Nora: Amy: Zoe: Clara: Ivy: Ruby: Jane:
        Daisy: Molly: Kate: Emma: Sara: Tina: Wendy: Olive: Fay: Greta"""),
    "he": _row("""Tom: Ben: Sam: Max: Leo: Jack: Tim: Finn: Otto: Paul: Hugo: Bob: Theo: Nick: Sid:
        Roy: Peter: Luke: Mark: Dan: Karl: Felix: Oscar: Gus"""),
}
# Subject, object, possessive, reflexive.
PRONOUNS = {"she": ("she", "her", "her", "herself"), "he": ("he", "him", "his", "himself")}
CHILD = {"she": "girl", "he": "boy"}
ELDERS = {"she": ("mom", "grandma", "aunt"), "he": ("dad", "grandpa", "uncle")}
NUMBERS = _row("no: one: two: three: four: five: six: seven: eight: nine: ten: eleven: twelve")
COLORS = _row("red: blue: green: yellow: white: black: orange: purple: pink: brown: gray: gold")
# Two paints and what they make.
MIXTURES = _table("""red: yellow: orange; red: blue: purple; blue: yellow: green; red: white: pink;
    black: white: gray; red: green: brown""")
# A kind of animal and what it says.
ANIMALS = _table("""cat: meow; dog: woof; duck: quack; mouse: squeak; pig: oink; frog: ribbit; owl:
    hoot; bear: growl; cow: moo; sheep: baa; pony: neigh; bird: tweet; hen: cluck; bee: buzz""")
# A trait, how it shows every day, what it makes one do when things get hard.
TRAITS = _table("""brave: was never afraid: did not run away; curious: asked many questions: looked
    at everything twice; kind: always helped others: thought of others first; shy: did not talk
    much: spoke in a very small voice; silly: loved to tell jokes: made a funny face; clever: always
    had a good idea: soon had a plan; careful: never ran too fast: took small steps; sleepy: liked
    to stay in bed: had to yawn first; noisy: talked all day long: shouted very loudly; patient:
    could wait for a long time: waited and did not cry; cheerful: sang from morning to night: began
    to sing; proud: wanted to be the best: stood up very straight; lazy: did not like to work: sat
    down for a while; gentle: never hurt anyone: moved very softly; polite: said please and thank
    you: bowed before speaking; stubborn: never changed plans: would not give up""")
# A toy and what one does with it: base form, past, -ing.
TOYS = _table("""ball: throw: threw: throwing; kite: fly: flew: flying; boat: sail: sailed: sailing;
    drum: bang: banged: banging; book: read: read: reading; bike: ride: rode: riding; wagon: pull:
    pulled: pulling; bell: ring: rang: ringing; car: push: pushed: pushing; top: spin: spun:
    spinning; spade: dig with: dug with: digging with; doll: sing to: sang to: singing to; bucket:
    fill: filled: filling; hoop: roll: rolled: rolling; horn: blow: blew: blowing; puzzle: solve:
    solved: solving; puppet: speak to: spoke to: speaking to; flag: wave: waved: waving""")
MARKS = _row("spots: stripes: stars: dots: flowers: hearts: lines: leaves")
SIZES = _row("big: small: new: old: pretty: shiny: little: fine")
# A place, being there, three hiding spots, who else is there.
PLACES = _table("""park: in the park: under the bench: behind the slide: near the pond: ducks;
    beach: at the beach: under a towel: behind a rock: near the water: crabs; forest: in the forest:
    under a log: behind an old tree: near the stream: foxes; garden: in the garden: under the
    leaves: behind the gate: near the roses: worms; farm: on the farm: under the cart: behind the
    barn: near the hay: geese; hill: on the hill: under a bush: behind the fence: near the path:
    goats; river: by the river: under the bridge: behind a boat: near the reeds: fish; market: at
    the market: under a table: behind a basket: near the bread: people; meadow: in the meadow: under
    a stone: behind the bushes: near the well: horses; castle: at the castle: under the stairs:
    behind the tower: near the wall: knights""")
FOODS = _table("""apple: apples; pear: pears; plum: plums; cookie: cookies; carrot: carrots; berry:
    berries; nut: nuts; egg: eggs; bun: buns; peach: peaches; cherry: cherries""")
# What happens, how one feels in it, what helps.
WEATHER = _table("""it began to rain: wet: an umbrella; a strong wind came up: cold: a scarf; it
    began to snow: cold: a thick coat; the sun grew very strong: hot: a wide hat; it grew dark:
    worried: a lamp; a thick fog came: lost: a map""")
# A skill, its past, the mishap of a beginner.
SKILLS = _table("""swim: swam: swallowed some water; whistle: whistled: made no sound at all; skate:
    skated: fell on the ground; climb: climbed: slid down again; dance: danced: stepped on a toe;
    juggle: juggled: dropped everything; cook: cooked: burned the soup; draw: drew: tore the paper;
    knit: knitted: tied a big knot; jump far: jumped far: fell into the mud""")

# In phrases and plots `[a|b]` is a choice and may be nested; `{slot}` is a fact of the story or a
# phrase, capitalized where the slot is.
PHRASES = {
    "any_color": f"[{'|'.join(COLORS)}]",
    "any_number": f"[{'|'.join(NUMBERS[2:8])}]",
    "any_animal": f"[{'|'.join(kind for kind, _ in ANIMALS)}]",
    "any_toy": f"[{'|'.join(toy for toy, *_ in TOYS)}]",
    "any_foods": f"[{'|'.join(plural for _, plural in FOODS)}]",
    "one_day": """[One [day|morning|afternoon|evening]|One [sunny|cold|warm|windy|quiet|rainy]
        [day|morning]|On [Monday|Tuesday|Friday|Sunday]|The next [day|morning]|Early one morning|
        After [lunch|school|breakfast]|When it was [spring|summer|winter]]""",
    "happy": "[happy|glad|so happy|very glad|full of joy|as happy as could be|pleased]",
    "sad": "[sad|upset|very sad|so sad|ready to cry|a little sad|not happy at all]",
    "cheered": "[smiled|laughed|clapped|grinned|cheered|danced around|jumped up and down]",
    "went": "[went|walked|ran|hurried|skipped|raced]",
    "said": "[said|cried|called|answered|whispered]",
    "in_the_end": "[In the end|At last|Then|Soon|After a while|A little later|All at once]",
    "sure": "[Yes|Of course|Sure|Okay|All right][, let us try|, I will help you|, my friend|]",
    "thanks": "[Thank you|Thank you so much|Thanks|You are so kind|You are a good friend]",
    "acts": """[Because {hero} was {trait}, {he}|But {hero} was {trait} and|{Hero}, {trait} as
        ever,] {trait_act}.""",
    "friend_acts": """[Because {friend} was {friend_trait}, {friend_he}|{Friend} was {friend_trait}
        and|{Friend}, {friend_trait} as ever,] {friend_trait_act}.""",
    "opening": """[[Once upon a time|Once|Long ago|In a [small town|quiet village|little house]],
        there [was|lived] a [little|young|small|] {kind} named {hero}. {Hero} was [very|so|always]
        {trait} and {trait_shown}.|{Hero} was a {trait} [little|young|] {kind} who lived [near|close
        to|not far from] the {place}. {He} {trait_shown}.|There was once a {trait} {kind} who
        {trait_shown}. {His} name was {hero}.] [{Hero} [loved|liked] {foods} and {playing} {his}
        {size} {color} {toy} with {marks}.|{He} had a {size} {color} {toy} with {marks} and {played}
        it every day.|{He} liked to {play} {his} {size} {color} {toy} with {marks} [before
        dinner|all day long].] [{His} best friend was {friend}, a {friend_trait} {friend_kind}[ who
        {friend_trait_shown}|].|{He} often played with a {friend_trait} {friend_kind} named
        {friend}.|Next door lived a {friend_trait} {friend_kind} named {friend}.]""",
    "alone": """[On the way, {he} saw {any_number} {sight} and [waved|said hello] to them.|A {size}
        {any_animal} [ran|walked|came] by, and it was {any_color}.|The sky was [blue|gray|bright]
        and the [grass|air|ground] was [soft|cool|warm|wet].|{Hero} wore {his} [new|old|warm]
        {any_color} [hat|coat|scarf].|{He} ate {any_number} {any_foods} because {he} was
        hungry.|{He} thought of {his} {elder}, who had a {any_color} {any_toy}.||]""",
    "together": """[{alone}|{alone}|They sang a [happy|silly|little] song about a {any_animal} and
        {any_number} {any_foods}.|"What do you like best, {friend}?" asked {hero}. "I like
        {any_foods} and my {any_color} {any_toy}," said {friend}.|{Friend} told a [funny|long|silly]
        story about a {any_animal} who {skilled}.|"Look, {any_number} {any_color} {sight}!" {said}
        {hero}.|"I like your {any_color} [hat|coat|bag]," {said} {friend}.|{Friend} saw {a_food}
        {spot2} [and ate it|and gave it to {hero}].]""",
    "ending": """[From that day on, {hero} and {friend} [loved {playing} the {toy} together|were the
        best of friends|met {at_place} every [day|week|Sunday]].|{Hero} and {friend} went home and
        ate {any_number} {foods}.|That night, {hero} [slept well|dreamed of a {any_color} {pet}|told
        {his} {elder} all about it].|{Hero} [hugged|thanked] {friend} and [ran|went] home to {his}
        {elder}.|They [laughed|played|sang] until it was [dark|time for bed|time to go home].|And
        they both lived happily ever after.|It was [a very good|the best] day.|{Hero} fell asleep
        with a smile, still holding {his} {color} {toy}.]""",
}

# What happens between the opening and the ending; `/` starts a paragraph.
PLOTS = (
    # A lost toy.
    """{One_day}, {hero} could not find {his} {color} {toy}. {He} looked {spot}, but it was not
    there. Only a {any_color} {toy2} was {spot2}. {Hero} was {sad}.
    / "[What is wrong|What happened|Why are you sad], {hero}?" asked {friend}. "I lost my {toy},"
    said {hero}. "It is {color} and has {marks}." "{Sure}," said {friend}. {Together} {Acts}
    / [{In_the_end}, {friend} saw something {color} with {marks} {spot3}. It was the
    {toy}!|{In_the_end}, they heard a {pet} {spot3}. "{Sound}!" it said. It was sitting on the
    {toy}! "May I have my {toy} back?" asked {hero}. The {pet} [stood up|nodded] and went away.|"Did
    you look {spot3}?" asked {his} {elder}. {Hero} ran there, and there was the {toy}!] {Hero} was
    {happy} and {played} it at once. "{Thanks}, {friend}," {he} said. [{Hero} learned to put {his}
    things away.|A friend can find what you can not.|]""",
    # Two want one toy.
    """{One_day}, {hero} and {friend} {went} to the {place}. {Together} {Spot}, they found a {size2}
    {color2} {toy2}. "It is mine, I saw it first!" {said} {hero}. "No, it is mine!" {said} {friend}.
    They both [pulled|held on], and nobody could {play2} it.
    / {Hero} was [angry|cross|mad], and {friend} was {sad}. [{Acts}|{Friend_acts}] [{In_the_end},
    {hero} said, "I am sorry, {friend}. You can {play2} it first." Then it was {friend}'s turn, and
    after that it was {hero}'s turn.|"We can take turns," said {friend}. First {hero} {played2} the
    {toy2}, and then {friend} {played2} it {any_number} times.|They asked {his} {elder}. "Good
    friends share," {elder_he} said. So {hero} gave the {color2} {toy2} to {friend}, and {friend}
    gave {a_food} to {hero}.] [It was more fun to share.|Two friends can have one {toy2}.|]""",
    # Adding and taking away.
    """{One_day}, {hero} and {friend} had a picnic {at_place}. {Hero} brought {some} and {friend}
    brought {more}. "How many do we have?" asked {friend}. {Hero} counted. "{Counted}!" {he} said.
    [{Some} and {more} make {total}.|"{Some} and {more} make {total}."|So they had {total}.]
    / {Together} Then a [hungry|little|sad] {pet} came. "{Sound}," it said. "[I have no food|I am so
    hungry|May I eat with you]?" [{Acts}|{Friend_acts}|] They gave {some} to the {pet}, and now
    {more} {were_more} left[ for the two friends|]. [Nobody was hungry any more.|The {pet} was
    {happy}.| "{Thanks}," said the {pet}.] [Food tastes better when you share it.|]""",
    # A rescue.
    """{One_day}, {hero} was {playing} {his} {toy} {at_place} when {he} heard a sound. "{Sound}!
    {Sound}!" {Alone} {Spot}, {he} found a [baby|little|young] {any_color} {pet}. It was stuck [in a
    hole|between two stones|in the mud|in a net] and [very|so] afraid.
    / "Do not [cry|worry|be afraid], {pet}," said {hero}. {Acts} {He} [pulled|pushed] and
    [pulled|pushed], but {he} could not do it alone. So {he} called {friend}. {Friend_acts}
    [{Friend} brought a [rope|long stick|strong net], and together they pulled {any_number}
    times.|They dug and dug until they were dirty all over.|"{Sure}," {friend} said.]
    / {In_the_end}, the {pet} was free! "{Sound}!" it said and [licked|kissed] {hero} on the nose.
    [{Hero} gave it {a_food}.|The {pet} ran home to its mother.|]""",
    # Bad weather.
    """{One_day}, {hero} wanted to {play} {his} {size} {color} {toy} {at_place}. {He} {went} there
    with {friend}. {Together} But [soon|then|all at once] {weather}, and {hero} was {weather_feel}.
    "I can not {play} my {toy} now," {he} said and was {sad}.
    / [{Acts}|{Friend_acts}] [{Friend} had {weather_help} and gave it to {hero}. "But now you will
    be {weather_feel}," said {hero}. "No, we can share it," said {friend}.|{Hero} ran home, and
    {his} {elder} gave {him} {weather_help}. "Now you will not be {weather_feel}," {elder_he}
    said.|They sat {spot} and ate {any_number} {any_foods} until it was over.] {In_the_end}, {hero}
    {played} the {toy}, and {friend} {cheered}. [Even a bad day can be good with a friend.|]""",
    # Learning a skill.
    """{Hero} wanted to learn to {skill}. {Friend} could {skill} very well, but {hero} could not.
    {One_day}, {he} tried it {at_place}. {He} {mishap}. {He} tried again and {mishap} again. "I will
    never learn to {skill}," {he} said and was {sad}.
    / [{Acts}|] "[Do not give up|Try once more|I could not do it at first]," said {friend}.
    {Friend_acts} "[Look at me|Do it like this], {hero}." {Together} {Hero} tried {any_number} more
    times. Each time {he} was a little better.
    / {In_the_end}, {hero} {skilled}! {Friend} {cheered}, and even {his} {elder} came to see it. "[I
    can|Look, I can] {skill}!" {said} {hero}. [{He} was {happy}.|{He} {skilled} again and again.]
    [If you keep trying, you will learn.|{Hero} never gave up.|]""",
    # Mixing paint.
    """{One_day}, {hero} wanted to paint [a {any_animal}|the [fence|door|chair]|{any_number}
    {any_foods}|{his} {toy}] {mixed}. But {he} had only {mix_a} paint and {mix_b} paint. "Where can
    I find {mixed} paint?" {he} asked. {Alone} [{Hero} looked {spot} and {spot2}, but there was
    none.|{His} {elder} did not have any.|{Acts}]
    / "I know what to do," said {friend}. {Friend_acts} "{Mix_a} and {mix_b} make {mixed}!" {Friend}
    put some {mix_a} into the {mix_b}, and [look|see], it was {mixed}!
    / {Hero} {cheered}. They painted [all day|until dinner|for an hour], and soon [everything|even
    {his} nose|the {toy2}] was {mixed}. [{His} {elder} laughed and said, "What a {mixed} {kind}!"|A
    {pet} came by and got {mixed} feet. "{Sound}!" it said.|]""",
    # A noise in the night.
    """One night, {hero} was in bed when {he} heard a [strange|loud|funny] sound. "{Sound}!
    {Sound}!" {Hero} was [afraid|scared]. "Is it a [{any_color}|big] {monster}?" {he} asked
    {himself}. [{He} hid under the [blanket|pillow|bed].|{Acts}]
    / [{He} called {his} {elder}, and {elder_he} came with a light.|{Friend} was sleeping there too
    and woke up. {Friend_acts}|{He} took {his} {toy} and went to the window.] "{Sound}!" it came
    again, from [the [kitchen|garden|roof]|behind the door]. {Hero} opened [the door|the window|one
    eye], and there was a [small|wet|hungry] {pet}! It was no {monster} at all.
    / {Hero} laughed. {He} gave the {pet} {a_food}[ and went back to bed| and said good night|]. In
    the morning, {he} told {friend} about it, and {friend} {cheered}. [A {pet} says "{sound}", and
    now {hero} knew it.|Things are less scary in the light.|]""",
    # Buying and change.
    """{Hero} had {coins} and wanted to buy a [gift|present|surprise] for {friend}. {One_day}, {he}
    {went} to the shop. {Alone} A {size2} {color2} {toy2} cost {price}. "[{Friend} will like it|That
    is a fine {toy2}|I will take it]," said {hero}. {He} paid {price} and had {change} left.
    / [For {change}, {he} got {a_food} too.|Then {he} lost {his} bag {spot}. {Acts} {In_the_end}, a
    {pet} brought it back. "{Sound}!" it said.|On the way home, {weather}, and {he} was
    {weather_feel}.] "This is for you," {said} {hero}. {Friend} {cheered} and {played2} the {color2}
    {toy2} at once. {Friend_acts} "{Thanks}, {hero}," {friend_he} said. [{Hero} was {happy}.|]""",
    # A race.
    """"I am faster than you," said {friend} [one day|one morning|after lunch]. "No, I am faster,"
    said {hero}. So they had a race to the {place}. {His} {elder} counted. "One, two, three, go!"
    / [{Friend} was fast, but {friend_he} [stopped to eat {any_number} {foods}|stopped to look at
    {any_number} {sight}|fell over a {any_color} {any_toy}]. {Hero} {went} on and on and won the
    race.|{Hero} was first, but then {he} saw a {pet} {spot}. "{Sound}," it said, for it was hurt.
    {Acts} {Hero} stopped to help it, and {friend} won the race.|{Hero} and {friend} ran and ran. At
    the {place}, they came in at the very same time. "We both win!" {said} {friend}.]
    / [{Friend_acts}|{Hero} {cheered}.|] "[You are really fast|That was fun|Let us race again],
    {friend}," said {hero}. {His} {elder} gave them {some} and {more}, so they had {total}. [Winning
    is not everything.|Friends can race and still be friends.|]""",
)

_TOKEN = re.compile(r"\{(\w+)\}|\[([^\[\]]*)\]")
_ARTICLE = re.compile(r"\b([Aa]) (?=[aeiou])")


def generate_stories(num_bytes: int, seed: int) -> str:
    """Tell stories until `num_bytes` are full, then cut after the last whole line.

    ASCII, so bytes are characters; a line holding `END_OF_STORY` follows every story, as in the
    TinyStories text files. A shorter text is a prefix of a longer one of the same seed; different
    seeds tell different stories. Equal arguments give equal text on every platform: all that is
    drawn is `Random.random`, whose sequence Python guarantees.
    """
    random = Random(seed)
    stories: list[str] = []
    size = 0
    while size < num_bytes:
        stories.append(f"{_tell_story(random)}\n{END_OF_STORY}\n")
        size += len(stories[-1])
    text = "".join(stories)
    return text[: text.rfind("\n", 0, max(num_bytes, 0)) + 1]


def _tell_story(random: Random) -> str:
    facts = _draw_facts(random)
    story = _expand(random, facts, f"{{opening}} / {_choose(random, PLOTS)} {{ending}}")
    text = " ".join(story.split()).replace(" / ", "\n")
    return _ARTICLE.sub(r"\1n ", text)


def _expand(random: Random, facts: dict[str, str], template: str) -> str:
    """Resolve slots and innermost choices until the text is plain."""

    def resolve(token: re.Match[str]) -> str:
        slot, options = token[1], token[2]
        if slot is None:
            return str(_choose(random, options.split("|")))
        name = slot.lower()
        text = facts[name] if name in facts else _expand(random, facts, PHRASES[name])
        return text if slot == name else text[:1].upper() + text[1:]

    resolved = 1
    while resolved:
        template, resolved = _TOKEN.subn(resolve, template)
    return template


def _choose(random: Random, options: Sequence[_Option], *taken: _Option) -> _Option:
    free = [option for option in options if option not in taken]
    return free[int(random.random() * len(free))]


def _count(number: int, singular: str, plural: str) -> str:
    return f"{NUMBERS[number]} {singular if number == 1 else plural}"


def _draw_facts(random: Random) -> dict[str, str]:
    """What a story keeps from its first line to its last, as texts for the slots."""
    gender, friend_gender, elder_gender = (_choose(random, ("she", "he")) for _ in range(3))
    hero = _choose(random, NAMES[gender])
    kind, friend_kind = (
        CHILD[who] if random.random() < 0.6 else _choose(random, ANIMALS)[0]
        for who in (gender, friend_gender)
    )
    color = _choose(random, COLORS)
    food, foods = _choose(random, FOODS)
    some, more = (1 + int(random.random() * 6) for _ in range(2))
    trait = _choose(random, TRAITS)
    toy = _choose(random, TOYS)
    facts = {
        "hero": hero,
        "friend": _choose(random, NAMES[friend_gender], hero),
        "kind": kind,
        "friend_kind": friend_kind,
        "friend_he": friend_gender,
        "elder": _choose(random, ELDERS[elder_gender]),
        "elder_he": elder_gender,
        "color": color,
        "color2": _choose(random, COLORS, color),
        "size": _choose(random, SIZES),
        "size2": _choose(random, SIZES),
        "marks": f"{NUMBERS[2 + int(random.random() * 8)]} {_choose(random, COLORS)} "
        f"{_choose(random, MARKS)}",
        "monster": _choose(random, ("monster", "ghost", "giant", "dragon")),
        "a_food": f"a {food}",
        "foods": foods,
        "some": _count(some, food, foods),
        "more": _count(more, food, foods),
        "total": _count(some + more, food, foods),
        "counted": ", ".join(NUMBERS[1 : some + more + 1]),
        "were_more": "was" if more == 1 else "were",
        "coins": _count(some + more, "coin", "coins"),
        "price": _count(some, "coin", "coins"),
        "change": _count(more, "coin", "coins"),
    }
    rows = {
        "he him his himself": PRONOUNS[gender],
        "trait trait_shown trait_act": trait,
        "friend_trait friend_trait_shown friend_trait_act": _choose(random, TRAITS, trait),
        "pet sound": _choose(random, [row for row in ANIMALS if row[0] not in (kind, friend_kind)]),
        "toy play played playing": toy,
        "toy2 play2 played2 playing2": _choose(random, TOYS, toy),
        "place at_place spot spot2 spot3 sight": _choose(random, PLACES),
        "weather weather_feel weather_help": _choose(random, WEATHER),
        "skill skilled mishap": _choose(random, SKILLS),
        "mix_a mix_b mixed": _choose(random, MIXTURES),
    }
    for slots, row in rows.items():
        facts.update(zip(slots.split(), row, strict=True))
    return facts
